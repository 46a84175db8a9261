//! The operator itself dies, at any moment, or runs twice.

use super::*;

impl Rig {
    /// The operator's process is gone, between two of its steps or in the middle of one.
    async fn crash_operator(&mut self) {
        let operator = self.operator.take().unwrap();
        operator.abort();
        let _ = operator.await;
        drop(self.stop.take());
    }
}

/// The primary dies, or is to move, or an update begins; the operator dies so many milliseconds later, and another
/// takes over from what is written down.
#[tokio::test(start_paused = true)]
async fn the_operator_dies_at_any_moment_of_a_change() {
    let mut rig = Rig::new().await;
    rig.create("orders", spec(3)).await;
    rig.well("orders", 3).await;
    for number in 0..36_u64 {
        let primary = rig.ready("orders", 3).await;
        assert!(rig.write("orders").await);
        let replica = ["orders-0", "orders-1", "orders-2"].into_iter().find(|pod| *pod != primary).unwrap();
        match number % 3 {
            0 => rig.kill(&primary),
            1 => {
                let asked = json!({"metadata": {"annotations": {"cache.example.com/switchover": replica}}});
                let clusters = rig.api::<RedisCluster>();
                clusters.patch("orders", &PatchParams::default(), &Patch::Merge(asked)).await.unwrap();
            }
            _ => {
                rig.api::<Pod>().delete(&primary, &DeleteParams::default()).await.unwrap();
            }
        }
        let after = Duration::from_millis(number * 25);
        let what = format!("case {} and the operator's death {after:?} later", number % 3);
        let end = tokio::time::Instant::now() + after;
        while tokio::time::Instant::now() < end {
            let _ = rig.write("orders").await;
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        rig.crash_operator().await;
        tokio::time::sleep(Duration::from_millis(500)).await;
        rig.start_operator().await;
        rig.recovers(&what).await;
        tokio::time::sleep(Duration::from_secs(3)).await;
        rig.well("orders", 3).await;
        assert_eq!(rig.lost("orders").await, 0, "{what}: acknowledged writes are gone");
    }
}

/// Two operators at once, which leader election should prevent: the status decides who acts.
#[tokio::test(start_paused = true)]
async fn two_operators_make_no_second_primary() {
    let mut rig = Rig::new().await;
    rig.create("orders", spec(3)).await;
    rig.well("orders", 3).await;
    let first = (rig.stop.take(), rig.operator.take());
    rig.start_operator().await;
    for number in 0..6 {
        let primary =
            rig.api::<RedisCluster>().get("orders").await.unwrap().status.unwrap().current_primary.unwrap();
        assert!(rig.write("orders").await);
        if number % 2 == 0 {
            rig.kill(&primary);
        } else {
            rig.api::<Pod>().delete(&primary, &DeleteParams::default()).await.unwrap();
        }
        rig.recovers("a fault under two operators").await;
        tokio::time::sleep(Duration::from_secs(40)).await;
        rig.recovers("a fault under two operators").await;
        assert_eq!(rig.lost("orders").await, 0);
    }
    drop(first);
    tokio::time::sleep(Duration::from_secs(3)).await;
    rig.well("orders", 3).await;
}
