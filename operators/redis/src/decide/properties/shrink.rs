//! Servers are removed one at a time, and no write is lost.

use super::*;

#[test]
fn servers_are_removed_from_the_top_and_writes_go_on() {
    for (size, to) in [(5, 2), (3, 1), (2, 1), (5, 4)] {
        let mut sim = Sim::new(size, true);
        sim.converge().unwrap();
        sim.happen(&Event::Resize(to - 1));
        let (mut gap, mut longest) = (0, 0);
        for _ in 0..400 {
            sim.tick();
            let primary = sim.service();
            let written = primary.is_some_and(|ip| sim.world.write(&ip, sim.now));
            gap = if written { 0 } else { gap + 1 };
            longest = longest.max(gap);
        }
        assert!(longest <= 2, "no write for {longest} ticks: {:?}", sim.steps);
        sim.converge().unwrap();
        sim.settled();
        assert_eq!((sim.replicas, sim.lost()), (to, 0));
        assert_eq!((sim.ledger.term, sim.ledger.quorum), (1, to / 2));
    }
}

#[test]
fn a_primary_that_is_to_go_hands_over_first() {
    let mut sim = Sim::new(3, true);
    sim.converge().unwrap();
    sim.happen(&Event::Ask(2));
    sim.converge().unwrap();
    assert_eq!(sim.service(), Some(ip(2)));
    assert!(sim.world.write(&ip(2), sim.now));
    sim.happen(&Event::Resize(1));
    sim.converge().unwrap();
    sim.settled();
    assert_eq!((sim.service(), sim.lost()), (Some(ip(0)), 0));
}

#[test]
fn nothing_is_removed_while_one_that_stays_is_not_in_sync_or_the_victim_is_silent() {
    let mut sim = Sim::new(3, true);
    sim.converge().unwrap();
    sim.world.kill(&ip(1));
    sim.happen(&Event::Resize(1));
    sim.happen(&Event::Run(250));
    sim.happen(&Event::Run(250));
    assert_eq!(sim.replicas, 3, "{:?}", sim.steps);
    sim.restart();
    sim.converge().unwrap();
    assert_eq!(sim.replicas, 2);

    let mut sim = Sim::new(3, true);
    sim.converge().unwrap();
    sim.happen(&Event::Mute(2));
    sim.happen(&Event::Resize(1));
    sim.happen(&Event::Run(250));
    sim.happen(&Event::Run(250));
    assert_eq!(sim.replicas, 3, "it may still receive: {:?}", sim.steps);
    sim.converge().unwrap();
    sim.settled();
    assert_eq!(sim.replicas, 2);
}

/// Found by chance: the one that was cut off took over when the primary's pod was deleted at that moment.
#[test]
fn one_that_was_cut_off_takes_over_from_nobody() {
    for after in 0..40 {
        let mut sim = Sim::new(2, true);
        sim.converge().unwrap();
        sim.happen(&Event::Run(110));
        sim.happen(&Event::Resize(0));
        for _ in 0..after {
            sim.tick();
            sim.happen(&Event::Write);
        }
        sim.happen(&Event::Terminate(0));
        sim.happen(&Event::Run(100));
        sim.converge().unwrap();
        sim.settled();
        assert_eq!((sim.replicas, sim.lost()), (1, 0), "after {after}: {:?}", sim.steps);
    }
}

#[test]
fn a_frozen_cluster_keeps_its_servers() {
    let mut sim = Sim::new(3, true);
    sim.converge().unwrap();
    sim.size = 2;
    let mut observation = sim.observe();
    observation.frozen = true;
    assert_eq!(decide(&observation).step, Step::Settled);
}
