use std::time::Duration;

use futures::future::{try_join, try_join_all};

use crate::arrival;
use crate::contender::Contender;
use crate::creates::{namespace, path};
use crate::failure::Failure;
use crate::multiplexed::Multiplexed;
use crate::samples::{Measure, Samples, milliseconds};

/// How many watch.
pub(crate) const WATCHERS: usize = 1000;
/// How many of them share a connection where some do: kube-apiserver allows no more.
const SHARING: usize = 100;
/// How many changes are made, and how many more before them that are not counted.
pub(crate) const CHANGES: u32 = 10;
pub(crate) const WARM_UP: u32 = 2;
/// How long nobody looks after a change: until then all have it, or it is waited for as long again.
pub(crate) const SLEEP: Duration = Duration::from_millis(100);
/// Room for all that waits in a socket.
const ROOM: usize = 1 << 20;

/// One small object is created. Measures until the last watcher has the event, and then looks that it really is one: once with a connection for each
/// watcher, once with connections of HTTP/2 that carry a hundred watches, as clients in Go have them.
pub(crate) async fn measure(contender: &Contender, round: u32, samples: &mut Samples) -> Result<(), Failure> {
    alone(contender, &format!("fan-out-{round}"), samples).await?;
    together(contender, &format!("fan-out-shared-{round}"), samples).await
}

/// Until the last socket has it; nobody is awake meanwhile.
async fn alone(contender: &Contender, space: &str, samples: &mut Samples) -> Result<(), Failure> {
    let mut writer = contender.connect().await?;
    namespace(&mut writer, space).await?;
    let mut watchers = Vec::new();
    for _ in 0..WATCHERS {
        let mut connection = contender.connect().await?;
        connection.watch(&watch(space)).await?;
        arrival::note(connection.socket())?;
        watchers.push(connection);
    }
    // The kernel takes its time to begin with it.
    tokio::time::sleep(SLEEP).await;
    let mut room = vec![0; ROOM];
    for change in 0..WARM_UP + CHANGES {
        let name = format!("change-{change}");
        let start = arrival::now();
        writer.request("POST", &path(space), &config_map(&name), 201).await?;
        let mut last = start;
        tokio::time::sleep(SLEEP).await;
        for watcher in &mut watchers {
            let arrived = loop {
                match arrival::last(watcher.socket(), &mut room)? {
                    Some(time) => break time,
                    None => tokio::time::sleep(SLEEP).await,
                }
            };
            last = last.max(arrived);
            check(&watcher.event().await?, &name)?;
        }
        if change >= WARM_UP {
            samples.add(contender.name, Measure::FanOut, milliseconds(last.saturating_sub(start)));
        }
    }
    Ok(())
}

/// Until the last event is read: of many on a connection those behind wait until those before are acknowledged, which a sleeping reader delays.
async fn together(contender: &Contender, space: &str, samples: &mut Samples) -> Result<(), Failure> {
    let mut writer = contender.connect().await?;
    namespace(&mut writer, space).await?;
    let mut connections = Vec::new();
    for _ in 0..WATCHERS / SHARING {
        let mut connection = contender.multiplexed().await?;
        for _ in 0..SHARING {
            connection.watch(&watch(space)).await?;
        }
        connections.push(connection);
    }
    for change in 0..WARM_UP + CHANGES {
        let name = format!("change-{change}");
        let (path, body) = (path(space), config_map(&name));
        let start = arrival::now();
        let made = writer.request("POST", &path, &body, 201);
        let read = try_join_all(connections.iter_mut().map(events));
        let read = async { Ok((read.await?, arrival::now())) };
        let (_, (read, last)) = try_join(made, read).await?;
        if change >= WARM_UP {
            samples.add(contender.name, Measure::SharedFanOut, milliseconds(last.saturating_sub(start)));
        }
        read.iter().flatten().try_for_each(|event| check(event, &name))?;
    }
    Ok(())
}

/// An event of each watch of a connection.
async fn events(connection: &mut Multiplexed) -> Result<Vec<Vec<u8>>, Failure> {
    let mut events = Vec::new();
    while events.len() < SHARING {
        events.push(connection.event().await?);
    }
    Ok(events)
}

fn watch(namespace: &str) -> String {
    format!("{}?watch=true&resourceVersion=0", path(namespace))
}

fn config_map(name: &str) -> Vec<u8> {
    let object = r#"{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"NAME"},"data":{"a":"b"}}"#;
    object.replace("NAME", name).into_bytes()
}

fn check(event: &[u8], name: &str) -> Result<(), Failure> {
    let event = String::from_utf8_lossy(event);
    if event.contains(r#""type":"ADDED""#) && event.contains(&format!(r#""{name}""#)) {
        return Ok(());
    }
    Err(Failure::Refused(format!("a watcher got {event}")))
}
