//! What the kernel asks for, whoever writes: as many bytes as an event has, to as many sockets as there are watchers, by a thread on each core that does
//! nothing else. No server on this machine brings an event to watchers with connections of their own in less time.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::sync::Barrier;
use std::thread;

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::arrival;
use crate::contender::{BARE, Running};
use crate::failure::Failure;
use crate::fan_out::{CHANGES, SLEEP, WARM_UP, WATCHERS};
use crate::samples::{Measure, Samples, milliseconds};

/// About what an event of the fan-out has, with the heads of its chunk and its TLS record.
const EVENT: [u8; 600] = [b'x'; 600];

/// Is that writer: says where it listens, and writes whenever its first client sends a byte, until that one goes.
pub(crate) fn serve() -> Result<(), Failure> {
    let failed = |what: &'static str| Failure::io(what);
    let listener = TcpListener::bind("127.0.0.1:0").map_err(failed("listen"))?;
    println!("{}", listener.local_addr().map_err(failed("listen"))?);
    let accept = || {
        let (stream, _) = listener.accept()?;
        stream.set_nodelay(true).map(|()| stream)
    };
    let mut asking = accept().map_err(failed("accept"))?;
    let sockets = (0..WATCHERS).map(|_| accept()).collect::<Result<Vec<_>, _>>().map_err(failed("accept"))?;
    let cores = thread::available_parallelism().map_or(1, usize::from);
    let turn = Barrier::new(cores + 1);
    let write = |sockets: &[TcpStream]| loop {
        turn.wait();
        for mut socket in sockets {
            // A client that has gone ends this process, too.
            drop(socket.write_all(&EVENT));
        }
    };
    thread::scope(|scope| {
        for part in 0..cores {
            let (start, end) = (WATCHERS * part / cores, WATCHERS * (part + 1) / cores);
            let sockets = &sockets[start..end];
            scope.spawn(move || write(sockets));
        }
        asking.write_all(b".").map_err(failed("say that all are there"))?;
        while asking.read_exact(&mut [0]).is_ok() {
            turn.wait();
        }
        // The threads wait for ever.
        std::process::exit(0)
    })
}

/// Measures it as the fan-out of a server.
pub(crate) async fn measure(samples: &mut Samples) -> Result<(), Failure> {
    let program = std::env::current_exe().map_err(Failure::io("find this program"))?;
    let child = Command::new(program).arg("--bare").stdout(Stdio::piped()).spawn();
    let mut child = child.map(Running).map_err(Failure::io("start this program again"))?;
    let mut line = String::new();
    if let Some(output) = child.0.stdout.take() {
        BufReader::new(output).read_line(&mut line).map_err(Failure::io("read where it listens"))?;
    }
    let address: SocketAddr =
        line.trim().parse().map_err(|_| Failure::Refused("the bare writer did not start".into()))?;
    let connect =
        || async move { tokio::net::TcpStream::connect(address).await.map_err(Failure::io("connect")) };
    let mut asking = connect().await?;
    asking.set_nodelay(true).map_err(Failure::io("connect"))?;
    let mut sockets = Vec::new();
    for _ in 0..WATCHERS {
        let socket = connect().await?;
        arrival::note(&socket)?;
        sockets.push(socket);
    }
    let mut byte = [0];
    asking.read_exact(&mut byte).await.map_err(Failure::io("wait for the bare writer"))?;
    let mut event = EVENT;
    tokio::time::sleep(SLEEP).await;
    for change in 0..WARM_UP + CHANGES {
        let start = arrival::now();
        asking.write_all(&byte).await.map_err(Failure::io("ask the bare writer"))?;
        tokio::time::sleep(SLEEP).await;
        let mut last = start;
        for socket in &mut sockets {
            socket.readable().await.map_err(Failure::io("wait for the bare writer"))?;
            last = last.max(arrival::last(socket, &mut event)?.unwrap_or(last));
            socket.read_exact(&mut event).await.map_err(Failure::io("read"))?;
        }
        if change >= WARM_UP {
            samples.add(BARE, Measure::FanOut, milliseconds(last.saturating_sub(start)));
        }
    }
    Ok(())
}
