use std::cell::Cell;

use serde_json::Value;

use crate::Options;
use crate::contender::Contender;
use crate::creates::{config_map, fill, namespace, path};
use crate::failure::Failure;
use crate::samples::{Measure, Samples, milliseconds, now, quantile};

/// How many create the objects.
const CLIENTS: usize = 16;
/// What clients in Go ask for at a time.
const PAGE: u32 = 500;
const SPACE: &str = "pages";

/// Fills a new server, which tells what an object costs in memory, then lists everything in pages while a writer creates one object after
/// another elsewhere.
pub(crate) async fn measure(
    contender: &Contender,
    options: &Options,
    samples: &mut Samples,
) -> Result<(), Failure> {
    let mut connection = contender.connect().await?;
    namespace(&mut connection, SPACE).await?;
    namespace(&mut connection, "elsewhere").await?;
    // Buffers and pools have their size after some.
    let warm = options.objects / 20;
    fill(contender, "elsewhere", CLIENTS, |made| made < warm).await?;
    let before = contender.memory();
    fill(contender, SPACE, CLIENTS, |made| made < options.objects).await?;
    let each = (contender.memory().saturating_sub(before)) as f64 / f64::from(options.objects) / 1024.0;
    samples.add(contender.name, Measure::PerObject, each);
    for round in 0..options.rounds {
        let mut writer = contender.connect().await?;
        let mut reader = contender.connect().await?;
        let listing = Cell::new(true);
        let writes = async {
            let mut times = Vec::new();
            while listing.get() {
                let body = config_map(&format!("written-{round}-{}", times.len()));
                let start = now();
                writer.request("POST", &path("elsewhere"), &body, 201).await?;
                times.push(milliseconds(start.elapsed()));
            }
            Ok::<_, Failure>(times)
        };
        let pages = async {
            let start = now();
            let listed = list(&mut reader).await;
            listing.set(false);
            listed.map(|listed| (listed, start.elapsed()))
        };
        let (mut times, ((before, last), took)) = futures::future::try_join(writes, pages).await?;
        let last: Value = serde_json::from_slice(&last)
            .map_err(|error| Failure::Refused(format!("a page that is no JSON: {error}")))?;
        let found = before + last["items"].as_array().map(Vec::len).unwrap_or_default();
        if found != options.objects as usize {
            return Err(Failure::Refused(format!("{found} of {} objects listed", options.objects)));
        }
        times.sort_by(f64::total_cmp);
        samples.add(contender.name, Measure::Blocked, quantile(&times, 1.0));
        samples.add(contender.name, Measure::BlockedHigh, quantile(&times, 0.99));
        samples.add(contender.name, Measure::Pages, took.as_secs_f64());
    }
    Ok(())
}

/// Lists all objects in pages; answers how many come before the last page, and that page.
async fn list(reader: &mut crate::connection::Connection) -> Result<(usize, Vec<u8>), Failure> {
    let mut found = 0;
    let mut token = String::new();
    loop {
        let page = reader.get(&format!("{}?limit={PAGE}{token}", path(SPACE))).await?;
        // Both write the metadata of a list before its items: to parse all of it would keep the writer of this thread waiting.
        let head = String::from_utf8_lossy(&page[..page.len().min(600)]).into_owned();
        let start =
            head.find(r#""metadata":{"#).ok_or_else(|| Failure::Refused("a list without metadata".into()))?;
        let mut values = serde_json::Deserializer::from_str(&head[start + 11..]).into_iter::<Value>();
        let metadata = values.next().and_then(Result::ok).unwrap_or_default();
        match metadata["continue"].as_str() {
            Some(next) if !next.is_empty() => token = format!("&continue={next}"),
            _ => return Ok((found, page)),
        }
        found += PAGE as usize;
    }
}
