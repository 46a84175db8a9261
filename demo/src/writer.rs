//! A client that writes all the time through the primary's Service and remembers what was acknowledged.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use redis::AsyncConnectionConfig;
use redis::aio::MultiplexedConnection;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

/// How many keys there are. When all are written, the writer goes round again with new values.
pub(crate) const KEYS: usize = 10_000;
/// How many keys are written in one go: all of them then take about as long as the steps beside them.
const BATCH: usize = 5;
/// The pause between two batches.
const PACE: Duration = Duration::from_millis(3);
/// How long an answer or a connection may take before the writer dials anew.
const LIMIT: Duration = Duration::from_millis(500);
/// How long the primary may wait for a replica to confirm a write.
const CONFIRM_MILLIS: u32 = 400;
const REDIAL: Duration = Duration::from_millis(20);

/// The highest round of one key that was sent and that was acknowledged.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Rounds {
    pub(crate) sent: u32,
    pub(crate) acknowledged: u32,
}

impl Rounds {
    fn send(&mut self) -> u32 {
        self.sent += 1;
        self.sent
    }
}

#[derive(Debug)]
struct Record {
    keys: Vec<Rounds>,
    acknowledged: u64,
    first_accepted: Option<(Instant, Instant)>,
    waiting_since: Option<Instant>,
    last_error: String,
}

/// The running writer.
pub(crate) struct Writer {
    record: Arc<Mutex<Record>>,
    stop: Arc<AtomicBool>,
    task: JoinHandle<()>,
}

impl Writer {
    /// Starts writing to the Service's address.
    pub(crate) fn start(service: SocketAddr) -> Self {
        let record = Arc::new(Mutex::new(Record {
            keys: vec![Rounds::default(); KEYS],
            acknowledged: 0,
            first_accepted: None,
            waiting_since: None,
            last_error: "none".to_owned(),
        }));
        let stop = Arc::new(AtomicBool::new(false));
        let task = tokio::spawn(write(service, Arc::clone(&record), Arc::clone(&stop)));
        Self { record, stop, task }
    }

    /// How many of the keys have an acknowledged value, and the last error seen.
    pub(crate) fn progress(&self) -> (usize, String) {
        let record = self.record.lock();
        (record.keys.iter().filter(|rounds| rounds.acknowledged > 0).count(), record.last_error.clone())
    }

    /// From now on, remember when the next write is accepted.
    pub(crate) fn mark(&self) {
        let mut record = self.record.lock();
        record.first_accepted = None;
        record.waiting_since = Some(Instant::now());
    }

    /// The time from [`Self::mark`] to the first write that was accepted after it by a connection made after it.
    pub(crate) fn gap(&self) -> Option<Duration> {
        self.record.lock().first_accepted.map(|(marked, accepted)| accepted - marked)
    }

    /// Stops, and gives the rounds of each key and the number of acknowledged writes.
    pub(crate) async fn stop(self) -> (Vec<Rounds>, u64) {
        self.stop.store(true, Ordering::Relaxed);
        drop(self.task.await);
        let record = self.record.lock();
        (record.keys.clone(), record.acknowledged)
    }
}

/// The name of key `index`.
pub(crate) fn key(index: usize) -> String {
    format!("demo:{index:05}")
}

async fn connect(service: SocketAddr) -> redis::RedisResult<MultiplexedConnection> {
    let config =
        AsyncConnectionConfig::new().set_connection_timeout(Some(LIMIT)).set_response_timeout(Some(LIMIT));
    redis::Client::open(format!("redis://{service}/"))?
        .get_multiplexed_async_connection_with_config(&config)
        .await
}

/// Writes until told to stop. A write counts as acknowledged when the primary accepted it **and** at least one
/// replica confirmed it (`WAIT`): Redis replicates asynchronously, so a client that must not lose a write asks for that.
async fn write(service: SocketAddr, record: Arc<Mutex<Record>>, stop: Arc<AtomicBool>) {
    let mut connection: Option<(MultiplexedConnection, Instant)> = None;
    let mut next = 0_usize;
    while !stop.load(Ordering::Relaxed) {
        let (mut client, dialled) = match connection.take() {
            Some(open) => open,
            None => match connect(service).await {
                Ok(client) => (client, Instant::now()),
                Err(error) => {
                    record.lock().last_error = error.to_string();
                    sleep(REDIAL).await;
                    continue;
                }
            },
        };
        let batch: Vec<_> = (next..next + BATCH).map(|index| index % KEYS).collect();
        let rounds: Vec<_> = {
            let mut record = record.lock();
            batch.iter().map(|index| record.keys[*index].send()).collect()
        };
        let mut pipeline = redis::pipe();
        for (index, round) in batch.iter().zip(&rounds) {
            pipeline.cmd("SET").arg(key(*index)).arg(round).ignore();
        }
        pipeline.cmd("WAIT").arg(1).arg(CONFIRM_MILLIS);
        let answer: redis::RedisResult<(u32,)> = pipeline.query_async(&mut client).await;
        match answer {
            Ok((replicas,)) => {
                let mut record = record.lock();
                if let Some(marked) = record.waiting_since
                    && dialled > marked
                {
                    record.waiting_since = None;
                    record.first_accepted = Some((marked, Instant::now()));
                }
                if replicas > 0 {
                    for (index, round) in batch.iter().zip(&rounds) {
                        record.keys[*index].acknowledged = *round;
                    }
                    record.acknowledged += rounds.len() as u64;
                    next += BATCH;
                }
                connection = Some((client, dialled));
            }
            Err(error) => record.lock().last_error = error.to_string(),
        }
        sleep(if connection.is_some() { PACE } else { REDIAL }).await;
    }
}
