//! Volumes grow: claims first, then pods whose file systems wait for that, one at a time, then the StatefulSet.

use super::*;
use crate::observe::Claim;

const GI: u128 = 1 << 30;

/// A cluster in sync whose claims are as given: what they ask for, what they have, what is pending.
fn observed(claims: &[(u128, u128, bool)], template: u128, wanted: Option<u128>) -> Observation {
    let mut sim = Sim::new(3, true);
    sim.converge().unwrap();
    sim.happen(&Event::Run(120));
    let mut o = sim.observe();
    o.volumes = wanted;
    o.workload.as_mut().unwrap().volumes = Some(template);
    for (ordinal, (asked, has, pending)) in claims.iter().enumerate() {
        let name = format!("data-{}", name(u32::try_from(ordinal).unwrap()));
        let claim = Claim { name, asked: *asked, has: *has, pending: *pending };
        o.instances.get_mut(&u32::try_from(ordinal).unwrap()).unwrap().claim = Some(claim);
    }
    o
}

#[test]
fn each_step_of_a_growth() {
    let grown = (2 * GI, 2 * GI, false);
    let small = (GI, GI, false);
    let on_its_way = (2 * GI, GI, false);
    let grow = |which: u32| Step::GrowClaim { claim: format!("data-orders-{which}"), bytes: 2 * GI };
    let renew = Step::Renew { uid: "set".into() };
    for (claims, template, wanted, step, why) in [
        ([small, small, small], GI, None, Step::Settled, "nobody asks, or the class does not allow it"),
        ([small, small, small], GI, Some(2 * GI), grow(0), "the first claim"),
        ([on_its_way, small, small], GI, Some(2 * GI), grow(1), "the next need not wait for it"),
        (
            [on_its_way, on_its_way, on_its_way],
            GI,
            Some(2 * GI),
            renew.clone(),
            "pods to come get the new size",
        ),
        ([grown, grown, grown], GI, Some(2 * GI), renew, "likewise"),
        ([grown, grown, small], 2 * GI, Some(2 * GI), grow(2), "a claim from before"),
        ([grown, grown, grown], 2 * GI, None, Step::Settled, "all done"),
    ] {
        assert_eq!(decide(&observed(&claims, template, wanted)).step, step, "{why}");
    }
}

#[test]
fn file_systems_that_wait_for_a_start_are_served_as_a_roll() {
    let pending = (2 * GI, GI, true);
    let mut o = observed(&[pending, pending, pending], 2 * GI, Some(2 * GI));
    let decision = decide(&o);
    assert!(matches!(&decision.step, Step::Restart { pod, .. } if pod == "orders-2"), "{decision:?}");
    o.instances.get_mut(&2).unwrap().claim.as_mut().unwrap().pending = false;
    o.instances.get_mut(&1).unwrap().claim.as_mut().unwrap().pending = false;
    let decision = decide(&o);
    assert!(
        matches!(&decision.step, Step::Record(ledger) if ledger.target.as_deref() != Some("orders-0")),
        "the role moves: {decision:?}"
    );
}

#[test]
fn the_stateful_set_is_made_anew_only_while_every_pod_is_there() {
    let grown = (2 * GI, 2 * GI, false);
    let base = observed(&[grown, grown, grown], GI, Some(2 * GI));
    let renews = |change: fn(&mut Observation)| {
        let mut o = base.clone();
        change(&mut o);
        matches!(decide(&o).step, Step::Renew { .. })
    };
    assert!(renews(|_| {}));
    assert!(!renews(|o| o.instances.get_mut(&1).unwrap().pod.as_mut().unwrap().ready = false));
    assert!(!renews(|o| o.instances.get_mut(&1).unwrap().pod.as_mut().unwrap().terminating = true));
    assert!(!renews(|o| o.instances.get_mut(&1).unwrap().claim = None));
    assert!(!renews(|o| o.frozen = true));
    assert!(!renews(|o| o.workload.as_mut().unwrap().terminating = true));
}
