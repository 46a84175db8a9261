//! Rolling replacement and moves off a node that is to be emptied.

use super::*;

/// The restarts of the roll so far.
fn restarts(sim: &Sim) -> Vec<u32> {
    let pods = sim.steps.iter().filter_map(|step| match step {
        Step::Restart { pod, .. } => Some(ordinal(pod)),
        _ => None,
    });
    pods.collect()
}

#[test]
fn replicas_are_replaced_first_and_writes_go_on() {
    for size in [2, 3, 5] {
        let mut sim = Sim::new(size, true);
        sim.converge().unwrap();
        sim.happen(&Event::Upgrade);
        let (mut gap, mut longest, mut ticks) = (0, 0, 0);
        while sim.pods.values().any(|pod| pod.template != sim.template) {
            sim.tick();
            let primary = sim.service();
            let written = primary.is_some_and(|ip| sim.world.write(&ip, sim.now));
            gap = if written { 0 } else { gap + 1 };
            longest = longest.max(gap);
            ticks += 1;
            assert!(ticks < 1500, "{:?}\n{:#?}", sim.steps, sim.observe());
        }
        assert!(longest <= 10, "no write for {longest} ticks: {:?}", sim.steps);
        sim.converge().unwrap();
        sim.settled();
        assert_eq!(sim.lost(), 0);
        let expected: Vec<u32> = (0..size).rev().collect();
        assert_eq!(restarts(&sim), expected, "each once, the primary last");
        assert_eq!(sim.ledger.term, 2, "the primary moved once");
    }
}

#[test]
fn a_server_alone_is_restarted_only_with_a_volume() {
    for persistent in [true, false] {
        let mut sim = Sim::new(1, persistent);
        sim.converge().unwrap();
        sim.world.write(&ip(0), sim.now);
        sim.happen(&Event::Upgrade);
        sim.happen(&Event::Run(200));
        sim.converge().unwrap();
        assert_eq!(restarts(&sim), if persistent { vec![0] } else { vec![] });
        assert_eq!(sim.lost(), 0);
        assert_eq!(super::super::roll_blocked(&sim.observe()).is_some(), !persistent);
    }
}

/// A new pod that never gets in sync: nothing else is touched, and taking the change back heals it.
#[test]
fn a_bad_template_stops_the_roll_and_taking_it_back_heals() {
    let mut sim = Sim::new(3, true);
    sim.converge().unwrap();
    sim.happen(&Event::Upgrade);
    while restarts(&sim).is_empty() {
        sim.tick();
    }
    sim.happen(&Event::Run(2));
    sim.world.kill(&ip(2));
    for _ in 0..300 {
        sim.tick();
        assert!(sim.service().is_some_and(|ip| sim.world.accepts_writes(&ip, sim.now)));
    }
    assert_eq!(restarts(&sim), [2], "{:?}", sim.steps);
    // The template is what it was: two pods are up to date, the third is not.
    sim.pods.get_mut(&2).unwrap().template = 9;
    sim.template = 0;
    sim.stopped.insert(2);
    sim.happen(&Event::Run(3));
    assert_eq!(restarts(&sim), [2, 2], "without waiting for calm");
    sim.stopped.clear();
    sim.converge().unwrap();
    sim.settled();
    assert_eq!(restarts(&sim), [2, 2]);
}

#[test]
fn the_primary_leaves_a_node_that_is_to_be_emptied() {
    let mut sim = Sim::new(3, true);
    sim.converge().unwrap();
    sim.world.write(&ip(0), sim.now);
    sim.happen(&Event::Cordon(0));
    sim.happen(&Event::Cordon(1));
    let gap = until_serves(&mut sim, 2);
    assert!(gap <= Duration::from_secs(1), "{gap:?}");
    assert_eq!((sim.lost(), sim.ledger.term), (0, 2));
    sim.happen(&Event::Cordon(2));
    sim.happen(&Event::Run(100));
    assert_eq!((sim.service(), sim.ledger.term), (Some(ip(2)), 2), "no place is better: it stays");
}

#[test]
fn an_outdated_primary_on_a_good_node_does_not_move_to_and_fro() {
    let mut sim = Sim::new(2, true);
    sim.converge().unwrap();
    sim.happen(&Event::Cordon(1));
    sim.happen(&Event::Upgrade);
    sim.happen(&Event::Run(250));
    sim.happen(&Event::Run(250));
    assert!(sim.ledger.term <= 2, "{:?}", sim.steps);
}
