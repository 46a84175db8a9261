use futures::future::try_join_all;

use crate::connection::Connection;
use crate::contender::Contender;
use crate::creates::{namespace, path};
use crate::failure::Failure;
use crate::samples::{Measure, Samples, milliseconds, now};

/// How many watch.
const WATCHERS: usize = 1000;
/// How many changes are made, and how many more before them that are not counted.
const CHANGES: u32 = 10;
const WARM_UP: u32 = 2;

/// One small object is created; each watcher has a connection of its own. Measures until the last one's socket has the event, and then looks
/// that it really is one.
pub(crate) async fn measure(contender: &Contender, round: u32, samples: &mut Samples) -> Result<(), Failure> {
    let space = format!("fan-out-{round}");
    let mut writer = contender.connect().await?;
    namespace(&mut writer, &space).await?;
    let (path, watch) = (path(&space), format!("{}?watch=true&resourceVersion=0", path(&space)));
    let mut watchers = Vec::new();
    for _ in 0..WATCHERS {
        let mut connection = contender.connect().await?;
        connection.watch(&watch).await?;
        watchers.push(connection);
    }
    for change in 0..WARM_UP + CHANGES {
        let name = format!("change-{change}");
        let body = format!(
            r#"{{"apiVersion":"v1","kind":"ConfigMap","metadata":{{"name":"{name}"}},"data":{{"a":"b"}}}}"#
        );
        let start = now();
        let made = writer.request("POST", &path, body.as_bytes(), 201);
        let (_, last) = futures::future::try_join(made, async {
            try_join_all(watchers.iter().map(Connection::arrived)).await?;
            Ok(start.elapsed())
        })
        .await?;
        if change >= WARM_UP {
            samples.add(contender.name, Measure::FanOut, milliseconds(last));
        }
        for watcher in &mut watchers {
            let event = String::from_utf8_lossy(&watcher.event().await?).into_owned();
            if !event.contains(r#""type":"ADDED""#) || !event.contains(&format!(r#""{name}""#)) {
                return Err(Failure::Refused(format!("a watcher got {event}")));
            }
        }
    }
    Ok(())
}
