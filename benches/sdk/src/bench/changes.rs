use std::time::{Duration, Instant};

use futures::{AsyncBufReadExt, TryStreamExt};
use http::Request;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};

use super::Failure;
use super::cluster::{Cluster, name};
use super::operator::Operator;
use super::samples::{Measure, Samples, milliseconds, quantile};
use crate::{Contender, Options};

/// One change at a time; so many of them.
const CHANGES: u32 = 300;
/// A change whose child doesn't follow.
const LOST: Duration = Duration::from_secs(30);

/// One life of an operator: without objects, many created, each touched, some changed.
pub(crate) async fn measure(
    contender: Contender,
    options: &Options,
    samples: &mut Samples,
) -> Result<(), Failure> {
    let cluster = Cluster::start(options.server).await?;
    let mut operator = Operator::start(contender, &cluster)?;
    let mut add = |measure, value| samples.add(contender, measure, value);
    let before = operator.ready().await?;
    add(Measure::Empty, operator.memory()? as f64 / f64::from(1 << 20));

    let objects = u64::from(options.objects);
    let each = |value: u64| value as f64 / objects as f64;
    cluster.create(0..options.objects).await?;
    let created = operator.quiet(before.stats.reconciles + objects).await?;
    let cost = created.since(&before);
    add(Measure::CreateWrites, each(cost.stats.writes));
    add(Measure::CreateReads, each(cost.stats.reads));
    add(Measure::CreateReconciles, each(cost.stats.reconciles));
    add(Measure::CreateTime, milliseconds(cost.processor) / objects as f64);

    for number in 0..options.objects {
        let touch = Patch::Merge(json!({ "metadata": { "annotations": { "touched": "yes" } } }));
        cluster.clusters().patch_metadata(&name(number), &PatchParams::default(), &touch).await?;
    }
    let touched = operator.quiet(created.stats.reconciles + objects).await?;
    let cost = touched.since(&created);
    add(Measure::TouchRequests, each(cost.stats.writes + cost.stats.reads));
    add(Measure::TouchReconciles, each(cost.stats.reconciles));
    add(Measure::TouchTime, milliseconds(cost.processor) / objects as f64);

    let changes = CHANGES.min(options.objects);
    let mut times = Vec::new();
    let request = Request::get("/apis/apps/v1/statefulsets?watch=1")
        .body(Vec::new())
        .map_err(kube::Error::HttpError)?;
    let watch = cluster.client().request_stream(request).await?;
    let mut lines = std::pin::pin!(watch.lines());
    for number in 0..changes {
        let change = Patch::Merge(json!({ "spec": { "replicas": 5 } }));
        let begun = Instant::now();
        cluster.clusters().patch(&name(number), &PatchParams::default(), &change).await?;
        let seen = async {
            while let Some(line) = lines.try_next().await.map_err(Failure::io("read a watch"))? {
                let event: Value = serde_json::from_str(&line).unwrap_or_default();
                if event["object"]["metadata"]["name"] == name(number).as_str()
                    && event["object"]["spec"]["replicas"] == 5
                {
                    return Ok(());
                }
            }
            Err(Failure::Refused("the watch of StatefulSets has ended".to_owned()))
        };
        tokio::time::timeout(LOST, seen)
            .await
            .map_err(|_| Failure::Refused(format!("{} has not followed its owner", name(number))))??;
        times.push(milliseconds(begun.elapsed()));
        // Its status follows; the next change meets an operator that has nothing to do.
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    times.sort_by(f64::total_cmp);
    add(Measure::ChangeMedian, quantile(&times, 0.5));
    add(Measure::ChangeHigh, quantile(&times, 0.99));
    let cost = operator.quiet(touched.stats.reconciles + u64::from(changes)).await?.since(&touched);
    add(Measure::ChangeWrites, cost.stats.writes as f64 / f64::from(changes));
    add(Measure::ChangeConflicts, cost.stats.conflicts as f64 / f64::from(changes));
    add(Measure::ChangeReconciles, cost.stats.reconciles as f64 / f64::from(changes));
    Ok(())
}
