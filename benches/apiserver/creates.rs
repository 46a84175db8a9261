use std::cell::Cell;
use std::time::Duration;

use futures::future::try_join_all;

use crate::connection::Connection;
use crate::contender::Contender;
use crate::failure::Failure;
use crate::samples::{Measure, Samples, milliseconds, now, quantile};

/// How many create at a time.
const CLIENTS: usize = 16;
/// How long they do.
const DURATION: Duration = Duration::from_secs(3);
/// How many creates go one at a time, and how many more before them that are not counted.
const SINGLE: u32 = 1000;
const WARM_UP: u32 = 100;

/// A ConfigMap with 1 KiB of data.
pub(crate) fn config_map(name: &str) -> Vec<u8> {
    const DATA: [u8; 1024] = [b'x'; 1024];
    let pieces: [&[u8]; 5] = [
        br#"{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":""#,
        name.as_bytes(),
        br#""},"data":{"value":""#,
        &DATA,
        br#""}}"#,
    ];
    pieces.concat()
}

/// The path of the ConfigMaps of a namespace.
pub(crate) fn path(namespace: &str) -> String {
    format!("/api/v1/namespaces/{namespace}/configmaps")
}

/// Makes a namespace.
pub(crate) async fn namespace(connection: &mut Connection, name: &str) -> Result<(), Failure> {
    let body = format!(r#"{{"apiVersion":"v1","kind":"Namespace","metadata":{{"name":"{name}"}}}}"#);
    connection.request("POST", "/api/v1/namespaces", body.as_bytes(), 201).await.map(drop)
}

/// Creates as many objects in a second as 16 clients can, each on a connection of its own.
pub(crate) async fn throughput(
    contender: &Contender,
    round: u32,
    samples: &mut Samples,
) -> Result<(), Failure> {
    let space = format!("throughput-{round}");
    namespace(&mut contender.connect().await?, &space).await?;
    let end = now() + DURATION;
    let start = now();
    let made = fill(contender, &space, CLIENTS, |_| now() < end).await?;
    samples.add(contender.name, Measure::Creates, f64::from(made) / start.elapsed().as_secs_f64());
    Ok(())
}

/// Creates objects by `clients` clients as long as `goes_on` says of the number of objects; answers how many there are.
pub(crate) async fn fill(
    contender: &Contender,
    namespace: &str,
    clients: usize,
    goes_on: impl Fn(u32) -> bool,
) -> Result<u32, Failure> {
    let made = Cell::new(0_u32);
    let (path, made, goes_on) = (&path(namespace), &made, &goes_on);
    let mut connections = Vec::new();
    for _ in 0..clients {
        connections.push(contender.connect().await?);
    }
    try_join_all(connections.into_iter().map(|mut connection| async move {
        while goes_on(made.get()) {
            let number = made.get();
            made.set(number + 1);
            let body = config_map(&format!("c-{number:07}"));
            connection.request("POST", path, &body, 201).await?;
        }
        Ok::<_, Failure>(())
    }))
    .await?;
    Ok(made.get())
}

/// How long one create takes, one at a time.
pub(crate) async fn latency(contender: &Contender, round: u32, samples: &mut Samples) -> Result<(), Failure> {
    let space = format!("latency-{round}");
    let mut connection = contender.connect().await?;
    namespace(&mut connection, &space).await?;
    let path = path(&space);
    let mut times = Vec::new();
    for number in 0..WARM_UP + SINGLE {
        let body = config_map(&format!("c-{number}"));
        let start = now();
        connection.request("POST", &path, &body, 201).await?;
        if number >= WARM_UP {
            times.push(milliseconds(start.elapsed()));
        }
    }
    times.sort_by(f64::total_cmp);
    samples.add(contender.name, Measure::LatencyMedian, quantile(&times, 0.5));
    samples.add(contender.name, Measure::LatencyHigh, quantile(&times, 0.99));
    Ok(())
}
