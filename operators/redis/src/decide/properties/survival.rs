//! Which writes outlive the death of a primary, and who may take over.

use super::*;

/// What happens to a cluster beside the death of its primary: links break and come back, data comes late, the
/// operator reaches servers late or not for less than three seconds.
fn disturbances() -> impl Strategy<Value = Event> {
    prop_oneof![
        4 => (1u8..15).prop_map(Event::Run),
        4 => Just(Event::Write),
        2 => (0u32..5, 0u16..4000).prop_map(|(which, millis)| Event::Cut(which, millis)),
        1 => (0u32..5, 0u16..900).prop_map(|(which, millis)| Event::Delay(which, millis)),
        1 => (0u32..5, 0u16..1000).prop_map(|(which, millis)| Event::Busy(which, millis)),
        2 => (0u32..5, 0u16..2500).prop_map(|(which, millis)| Event::HideFor(which, millis)),
    ]
}

impl Sim {
    /// Writes that a replica confirmed and the present primary does not have.
    fn unconfirmed(&self) -> Vec<u64> {
        let primary = self.service().expect("the Service leads somewhere");
        let log: std::collections::BTreeSet<u64> = self.world.servers[&primary].log.iter().copied().collect();
        self.world.confirmed.difference(&log).copied().collect()
    }
}

proptest! {
    /// A write that a replica confirmed is not lost by the death of the primary: neither where the links of other
    /// replicas broke before, nor where the operator does not reach the one that has it at that moment.
    #[test]
    fn confirmed_writes_survive_the_primary(
        size in 2u32..=5,
        persistent: bool,
        rounds in prop::collection::vec(
            (prop::collection::vec(disturbances(), 0..12), prop::collection::vec(disturbances(), 0..8), any::<bool>()),
            1..3,
        ),
    ) {
        let mut sim = Sim::new(size, persistent);
        for (before, after, restarts) in &rounds {
            sim.converge().unwrap();
            for event in before {
                sim.happen(event);
            }
            let Some(primary) = sim.service() else { continue };
            sim.world.kill(&primary);
            if *restarts {
                sim.restart();
            }
            for event in after {
                sim.happen(event);
            }
            // Converging brings every server back at once; the silent ones have time to speak before.
            sim.happen(&Event::Run(30));
            sim.converge().unwrap();
            sim.settled();
            let lost = sim.unconfirmed();
            prop_assert!(lost.is_empty(), "{lost:?} were confirmed by a replica; steps: {:?}", sim.steps);
        }
    }
}

/// One replica lost its link in the moment before the primary died; the other has everything, but the operator does
/// not reach it just then.
#[test]
fn a_silent_replica_that_may_have_more_is_waited_for() {
    let mut sim = Sim::new(3, true);
    sim.converge().unwrap();
    sim.happen(&Event::Cut(1, 10_000));
    sim.world.advance(sim.now);
    assert!(sim.world.write(&ip(0), sim.now));
    sim.happen(&Event::Run(1));
    assert_eq!(sim.world.confirmed.len(), 1);
    sim.happen(&Event::HideFor(2, 2_000));
    sim.world.kill(&ip(0));
    sim.happen(&Event::Run(40));
    assert_eq!(sim.service(), Some(ip(2)), "{:?}", sim.steps);
    sim.converge().unwrap();
    assert_eq!(sim.lost(), 0);
}

/// The primary comes back empty before the operator noticed that the cluster holds data, and just then it does not
/// reach the replica that has it.
#[test]
fn an_empty_primary_does_not_take_its_role_back_before_its_replica_was_asked() {
    let mut sim = Sim::new(2, false);
    sim.converge().unwrap();
    sim.happen(&Event::Write);
    sim.happen(&Event::HideFor(1, 1_000));
    sim.happen(&Event::Run(1));
    sim.world.kill(&ip(0));
    sim.restart();
    sim.happen(&Event::Run(30));
    sim.converge().unwrap();
    sim.settled();
    assert_eq!(sim.unconfirmed(), [0; 0], "{:?}", sim.steps);
}

/// A cluster that was emptied has nothing that could be lost: an empty replica takes over although the cluster held
/// data once. It was passed over where the quorum fell with it.
#[test]
fn an_emptied_cluster_goes_on_with_an_empty_replica() {
    for size in [2, 3] {
        let mut sim = Sim::new(size, true);
        sim.converge().unwrap();
        sim.happen(&Event::Write);
        sim.happen(&Event::Run(30));
        assert!(sim.ledger.holds_data);
        for server in sim.world.servers.values_mut() {
            server.log.clear();
        }
        sim.happen(&Event::Run(30));
        sim.world.kill(&ip(0));
        sim.happen(&Event::Run(60));
        assert_eq!(sim.service(), Some(ip(1)), "{:?}", sim.steps);
        sim.converge().unwrap();
        sim.settled();
        assert!(!sim.ledger.holds_data);
    }
}

/// The first write of a cluster was not yet at its replica when the primary died: the primary's volume has it.
#[test]
fn an_empty_replica_does_not_replace_a_primary_with_data() {
    let mut sim = Sim::new(2, true);
    sim.converge().unwrap();
    sim.happen(&Event::Cut(1, 1_400));
    sim.happen(&Event::Write);
    sim.happen(&Event::Run(9));
    assert!(sim.ledger.holds_data);
    sim.world.kill(&ip(0));
    sim.happen(&Event::Run(60));
    assert_eq!(sim.service(), Some(ip(0)), "{:?}", sim.steps);
    sim.converge().unwrap();
    sim.settled();
    assert_eq!(sim.lost(), 0);
}

/// Waiting has an end: a replica that stays away does not keep the cluster without a primary.
#[test]
fn a_replica_that_stays_away_is_not_waited_for() {
    let mut sim = Sim::new(3, true);
    sim.converge().unwrap();
    sim.happen(&Event::Hide(2));
    sim.world.kill(&ip(0));
    sim.happen(&Event::Run(45));
    assert_eq!(sim.service(), Some(ip(1)), "{:?}\n{:#?}", sim.steps, sim.observe());
}

/// No replica followed any more when the primary accepted its last writes: its own data is the best, and it is
/// waited for. Where it does not come back in time, a replica that is not long behind takes over.
#[test]
fn a_primary_that_restarts_with_more_than_its_replicas_stays_the_primary() {
    for returns in [true, false] {
        let mut sim = Sim::new(3, true);
        sim.converge().unwrap();
        sim.happen(&Event::Write);
        sim.happen(&Event::Run(5));
        sim.happen(&Event::Cut(1, 60_000));
        sim.happen(&Event::Cut(2, 60_000));
        sim.happen(&Event::Run(12));
        assert!(sim.world.write(&ip(0), sim.now), "Preferred: nobody is left to confirm");
        sim.happen(&Event::Run(12));
        sim.world.kill(&ip(0));
        sim.happen(&Event::Run(15));
        if returns {
            sim.restart();
        }
        sim.happen(&Event::Run(30));
        assert_eq!(sim.service() == Some(ip(0)), returns, "{:?}\n{:#?}", sim.steps, sim.observe());
        sim.converge().unwrap();
        sim.settled();
        assert_eq!(sim.lost(), usize::from(!returns));
    }
}

/// Nobody is known to be recent, and the primary stays away: only a human can say which replica to go on with.
#[test]
fn a_human_may_choose_where_no_replica_is_recent() {
    let mut sim = Sim::new(3, true);
    sim.converge().unwrap();
    sim.happen(&Event::Cut(1, 60_000));
    sim.happen(&Event::Cut(2, 60_000));
    sim.happen(&Event::Run(90));
    sim.world.kill(&ip(0));
    sim.happen(&Event::Run(60));
    assert_eq!(sim.ledger.target, Some(name(0)), "{:?}", sim.steps);
    sim.chosen = Some(name(2));
    sim.happen(&Event::Run(20));
    assert_eq!(sim.service(), Some(ip(2)), "{:?}\n{:#?}", sim.steps, sim.observe());
}
