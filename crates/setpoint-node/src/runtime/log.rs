//! A container's log: written in the format of CRI (`TIME stdout F line`), in two files that take turns.

use std::collections::VecDeque;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use futures::StreamExt;
use jiff::Timestamp;
use parking_lot::Mutex;
use setpoint_clock::Clock;
use setpoint_cluster::kubelet::{LogOptions, LogStream, RuntimeError};
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::sync::{broadcast, watch};

/// The kubelet's default of `containerLogMaxSize`.
const FILE_LIMIT: u64 = 10 * 1024 * 1024;

/// Longer lines are split and marked as partial, as containerd does.
const LINE_LIMIT: usize = 16 * 1024;

/// Which stream a line came from.
#[derive(Clone, Copy, Debug)]
pub(super) enum Stream {
    Stdout,
    Stderr,
}

/// A log. The current file is at `path`, the one before at `path` with `.1` appended.
pub(super) struct Log {
    path: PathBuf,
    clock: Clock,
    file: Mutex<Current>,
    state: watch::Sender<State>,
    /// What comes, for who is attached to the container; `None` when nothing more does.
    live: Mutex<Option<Live>>,
}

/// What a container writes, byte by byte.
struct Live {
    stdout: broadcast::Sender<Bytes>,
    stderr: broadcast::Sender<Bytes>,
}

/// How many pieces of output may wait for who is attached. One who reads more slowly misses some: the container does not wait.
const WAITING: usize = 64;

struct Current {
    file: File,
    size: u64,
}

/// What readers that follow wait for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct State {
    /// How often the file was replaced.
    generation: u64,
    /// Size of the current file.
    size: u64,
    /// Nothing more comes.
    closed: bool,
}

impl Log {
    pub(super) fn create(path: PathBuf, clock: Clock) -> io::Result<Self> {
        let file = File::create(&path)?;
        let file = Mutex::new(Current { file, size: 0 });
        let live = Live { stdout: broadcast::Sender::new(WAITING), stderr: broadcast::Sender::new(WAITING) };
        Ok(Self {
            path,
            clock,
            file,
            state: watch::Sender::new(State::default()),
            live: Mutex::new(Some(live)),
        })
    }

    fn write(&self, stream: Stream, lines: &[(&[u8], bool)]) -> io::Result<()> {
        let name = match stream {
            Stream::Stdout => "stdout",
            Stream::Stderr => "stderr",
        };
        let mut text = Vec::new();
        for (line, whole) in lines {
            write!(text, "{:.9} {name} {} ", self.clock.now(), if *whole { 'F' } else { 'P' })?;
            text.extend_from_slice(line);
            text.push(b'\n');
        }
        let mut current = self.file.lock();
        let rotate = current.size > 0 && current.size + text.len() as u64 > FILE_LIMIT;
        if rotate {
            fs::rename(&self.path, previous(&self.path))?;
            *current = Current { file: File::create(&self.path)?, size: 0 };
        }
        current.file.write_all(&text)?;
        current.size += text.len() as u64;
        let size = current.size;
        self.state.send_modify(|state| {
            state.generation += u64::from(rotate);
            state.size = size;
        });
        Ok(())
    }

    /// Tells readers that nothing more comes.
    pub(super) fn close(&self) {
        self.live.lock().take();
        self.state.send_modify(|state| state.closed = true);
    }

    /// What comes from now on to standard output and error; `None` when nothing more does.
    pub(super) fn live(&self) -> Option<(broadcast::Receiver<Bytes>, broadcast::Receiver<Bytes>)> {
        self.live.lock().as_ref().map(|live| (live.stdout.subscribe(), live.stderr.subscribe()))
    }

    /// Shows those who are attached what came.
    fn show(&self, stream: Stream, bytes: &[u8]) {
        if let Some(live) = &*self.live.lock() {
            let sender = match stream {
                Stream::Stdout => &live.stdout,
                Stream::Stderr => &live.stderr,
            };
            if sender.receiver_count() > 0 {
                // The last of them may have gone.
                let _ = sender.send(Bytes::copy_from_slice(bytes));
            }
        }
    }

    /// The last bytes of what the container wrote.
    pub(super) fn end(&self, limit: usize) -> Vec<u8> {
        let content = fs::read(&self.path).unwrap_or_default();
        let mut text: Vec<u8> = Vec::new();
        for entry in content.split_inclusive(|byte| *byte == b'\n').filter_map(Entry::parse) {
            entry.append_to(&mut text, false);
        }
        text.split_off(text.len().saturating_sub(limit))
    }

    pub(super) fn remove(&self) {
        let _ = fs::remove_file(&self.path);
        let _ = fs::remove_file(previous(&self.path));
    }
}

fn previous(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".1");
    PathBuf::from(name)
}

/// Copies one of a container's streams into its log until the stream ends.
pub(super) async fn copy(mut reader: impl AsyncRead + Unpin, log: Arc<Log>, stream: Stream) {
    let mut pending: Vec<u8> = Vec::new();
    let mut buffer = vec![0; 8 * 1024];
    while let Ok(size @ 1..) = reader.read(&mut buffer).await {
        log.show(stream, &buffer[..size]);
        pending.extend_from_slice(&buffer[..size]);
        let used = {
            let (lines, used) = split(&pending);
            if !lines.is_empty()
                && let Err(error) = log.write(stream, &lines)
            {
                tracing::warn!(%error, path = %log.path.display(), "a container's log cannot be written");
            }
            used
        };
        pending.drain(..used);
    }
    if !pending.is_empty() {
        let _ = log.write(stream, &[(&pending, true)]);
    }
}

/// Whole lines, and pieces of lines that are too long; and how many bytes they took.
fn split(bytes: &[u8]) -> (Vec<(&[u8], bool)>, usize) {
    let mut lines = Vec::new();
    let mut used = 0;
    loop {
        let rest = &bytes[used..];
        let end = rest.iter().take(LINE_LIMIT).position(|byte| *byte == b'\n');
        match end {
            Some(end) => {
                lines.push((&rest[..end], true));
                used += end + 1;
            }
            None if rest.len() >= LINE_LIMIT => {
                lines.push((&rest[..LINE_LIMIT], false));
                used += LINE_LIMIT;
            }
            None => return (lines, used),
        }
    }
}

/// One line of a log file.
struct Entry<'a> {
    time: &'a str,
    whole: bool,
    text: &'a [u8],
}

impl<'a> Entry<'a> {
    fn parse(line: &'a [u8]) -> Option<Self> {
        let line = line.strip_suffix(b"\n")?;
        let mut parts = line.splitn(4, |byte| *byte == b' ');
        let time = str::from_utf8(parts.next()?).ok()?;
        let _stream = parts.next()?;
        let whole = parts.next()? == b"F";
        Some(Self { time, whole, text: parts.next()? })
    }

    fn append_to(&self, output: &mut Vec<u8>, timestamps: bool) {
        if timestamps {
            output.extend_from_slice(self.time.as_bytes());
            output.push(b' ');
        }
        output.extend_from_slice(self.text);
        if self.whole {
            output.push(b'\n');
        }
    }
}

/// Reads a log as asked.
pub(super) fn stream(log: &Arc<Log>, options: &LogOptions) -> Result<LogStream, RuntimeError> {
    let failed = |source| RuntimeError::Io { what: log.path.display().to_string(), source };
    let mut state = log.state.subscribe();
    let seen = *state.borrow_and_update();
    let mut file = File::open(&log.path).map_err(failed)?;
    let mut content = fs::read(previous(&log.path)).unwrap_or_default();
    file.read_to_end(&mut content).map_err(failed)?;
    let mut reader =
        Reader { log: Arc::clone(log), file, state, seen, rest: Vec::new(), options: options.clone() };
    let first = reader.first(&content);
    let start = futures::stream::iter((!first.is_empty()).then(|| Ok(Bytes::from(first))));
    let follow = options.follow;
    let more = futures::stream::unfold(reader, move |mut reader| async move {
        let next = if follow { reader.next().await } else { None };
        next.map(|piece| (piece, reader))
    });
    let limit = options.limit_bytes.unwrap_or(u64::MAX);
    let limited = start.chain(more).scan(limit, |left, piece: io::Result<Bytes>| {
        let piece =
            piece.map(|bytes| bytes.slice(..bytes.len().min(usize::try_from(*left).unwrap_or(usize::MAX))));
        let go_on = *left > 0;
        *left -= piece.as_ref().map_or(0, Bytes::len) as u64;
        futures::future::ready(go_on.then_some(piece))
    });
    Ok(limited.boxed())
}

struct Reader {
    log: Arc<Log>,
    file: File,
    state: watch::Receiver<State>,
    /// The state whose content has been read.
    seen: State,
    /// The beginning of a line whose end was not there yet.
    rest: Vec<u8>,
    options: LogOptions,
}

impl Reader {
    /// What was in the log at the beginning.
    fn first(&mut self, content: &[u8]) -> Vec<u8> {
        let mut lines: VecDeque<Vec<u8>> = VecDeque::new();
        let mut open = false;
        for entry in self.entries(content).iter().filter_map(|line| Entry::parse(line)) {
            if !self.wanted(&entry) {
                continue;
            }
            if !open {
                lines.push_back(Vec::new());
            }
            if let Some(line) = lines.back_mut() {
                entry.append_to(line, self.options.timestamps && !open);
            }
            open = !entry.whole;
        }
        if let Some(tail) = self.options.tail_lines {
            lines.drain(..lines.len().saturating_sub(tail));
        }
        lines.into_iter().flatten().collect()
    }

    fn wanted(&self, entry: &Entry<'_>) -> bool {
        let Some(since) = self.options.since else { return true };
        entry.time.parse::<Timestamp>().is_ok_and(|time| time >= since)
    }

    /// Whole lines out of new content; keeps the beginning of an unfinished one.
    fn entries(&mut self, content: &[u8]) -> Vec<Vec<u8>> {
        let mut all = std::mem::take(&mut self.rest);
        all.extend_from_slice(content);
        let end = all.iter().rposition(|byte| *byte == b'\n').map_or(0, |last| last + 1);
        self.rest = all.split_off(end);
        all.split_inclusive(|byte| *byte == b'\n').map(<[u8]>::to_vec).collect()
    }

    /// The next piece; none when the log is closed and read.
    async fn next(&mut self) -> Option<io::Result<Bytes>> {
        loop {
            let mut content = Vec::new();
            if let Err(error) = self.file.read_to_end(&mut content) {
                return Some(Err(error));
            }
            let now = *self.state.borrow_and_update();
            if now.generation != self.seen.generation {
                // The old file has been read to its end above, unless it was written since.
                let opened = self.file.read_to_end(&mut content).and_then(|_| File::open(&self.log.path));
                match opened {
                    Ok(file) => self.file = file,
                    Err(error) => return Some(Err(error)),
                }
            }
            let moved = now != self.seen;
            self.seen = now;
            let mut output = Vec::new();
            for line in self.entries(&content) {
                if let Some(entry) = Entry::parse(&line).filter(|entry| self.wanted(entry)) {
                    entry.append_to(&mut output, self.options.timestamps);
                }
            }
            if !output.is_empty() {
                return Some(Ok(Bytes::from(output)));
            }
            if moved {
                continue;
            }
            if now.closed || self.state.changed().await.is_err() {
                return None;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn text(log: &Arc<Log>, options: &LogOptions) -> String {
        let pieces: Vec<_> = stream(log, options).unwrap().collect().await;
        let bytes: Vec<u8> = pieces.into_iter().flat_map(Result::unwrap).collect();
        String::from_utf8(bytes).unwrap()
    }

    fn log(directory: &tempfile::TempDir) -> Arc<Log> {
        Arc::new(Log::create(directory.path().join("c.log"), Clock::at(Timestamp::UNIX_EPOCH)).unwrap())
    }

    #[tokio::test(start_paused = true)]
    async fn lines_have_time_and_stream_and_are_read_as_asked() {
        let directory = tempfile::tempdir().unwrap();
        let log = log(&directory);
        copy(&b"one\ntwo\n"[..], Arc::clone(&log), Stream::Stdout).await;
        tokio::time::advance(std::time::Duration::from_secs(1)).await;
        copy(&b"three"[..], Arc::clone(&log), Stream::Stderr).await;
        let file = fs::read_to_string(&log.path).unwrap();
        assert!(file.starts_with("1970-01-01T00:00:00.000000000Z stdout F one\n"), "{file}");
        assert!(file.ends_with("1970-01-01T00:00:01.000000000Z stderr F three\n"), "{file}");

        let all = LogOptions::default();
        assert_eq!(text(&log, &all).await, "one\ntwo\nthree\n");
        assert_eq!(text(&log, &LogOptions { tail_lines: Some(2), ..all.clone() }).await, "two\nthree\n");
        assert_eq!(text(&log, &LogOptions { limit_bytes: Some(5), ..all.clone() }).await, "one\nt");
        let since = Some(Timestamp::from_second(1).unwrap());
        let options = LogOptions { since, timestamps: true, ..all.clone() };
        assert_eq!(text(&log, &options).await, "1970-01-01T00:00:01.000000000Z three\n");
        assert_eq!(log.end(8), b"o\nthree\n");
    }

    #[tokio::test(start_paused = true)]
    async fn a_follower_sees_everything_across_a_change_of_files() {
        let directory = tempfile::tempdir().unwrap();
        let log = log(&directory);
        let options = LogOptions { follow: true, ..LogOptions::default() };
        let mut pieces = stream(&log, &options).unwrap();
        let reader = tokio::spawn(async move {
            let mut size = 0;
            while let Some(piece) = pieces.next().await {
                size += piece.unwrap().len();
            }
            size
        });
        // Two files' worth, so that the first is replaced once; long lines are split and joined again.
        let line = [b"x".repeat(LINE_LIMIT * 2), b"\n".to_vec()].concat();
        let count = usize::try_from(FILE_LIMIT).unwrap() * 3 / 2 / line.len();
        for _ in 0..count {
            copy(&line[..], Arc::clone(&log), Stream::Stdout).await;
            tokio::task::yield_now().await;
        }
        log.close();
        assert_eq!(reader.await.unwrap(), count * line.len());
        assert!(previous(&log.path).exists());
    }

    #[test]
    fn long_lines_are_split() {
        let long = vec![b'a'; LINE_LIMIT + 3];
        let (lines, used) = split(&long);
        assert_eq!((lines.len(), used, lines[0].1), (1, LINE_LIMIT, false));
        assert_eq!(split(b"ab\ncd"), (vec![(&b"ab"[..], true)], 3));
    }
}
