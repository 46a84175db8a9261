//! The bounded run: every seed, and mutations of the seeds from a fixed sequence, through the functions that cargo-fuzz
//! feeds. `SETPOINT_FUZZ_MUTATIONS` says how many for each target (default: 300).
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test")]

use std::path::Path;

use setpoint_fuzz::{TARGETS, Target};

const LONGEST: usize = 4096;

fn seeds(name: &str) -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/seeds").join(name);
    let mut files: Vec<_> = std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    assert!(!files.is_empty(), "{} is empty", folder.display());
    files.iter().map(|file| std::fs::read(file).unwrap()).collect()
}

/// One of the things that may happen to bytes on their way.
fn mutate(data: &mut Vec<u8>, seeds: &[Vec<u8>], random: &mut fastrand::Rng) {
    let at = random.usize(..=data.len());
    let end = (at + random.usize(..32)).min(data.len());
    match random.u8(..7) {
        0 if at < data.len() => data[at] ^= 1 << random.u8(..8),
        1 => data.insert(at, random.u8(..)),
        2 => drop(data.drain(at..end)),
        3 => {
            let piece = data[at..end].to_vec();
            let times = random.usize(1..8);
            data.splice(at..at, piece.repeat(times));
        }
        4 => {
            let other = &seeds[random.usize(..seeds.len())];
            let from = random.usize(..=other.len());
            let to = (from + random.usize(..64)).min(other.len());
            data.splice(at..end, other[from..to].iter().copied());
        }
        5 => {
            let odd = [
                b"\"\"".as_slice(),
                b"null",
                b"[]",
                b"{}",
                b"-1",
                b"1e400",
                b"9223372036854775808",
                b"\xff",
                b"\\u0000",
            ];
            data.splice(at..end, odd[random.usize(..odd.len())].iter().copied());
        }
        _ => data.truncate(at),
    }
    data.truncate(LONGEST);
}

fn run(name: &str, target: Target) {
    let seeds = seeds(name);
    for seed in &seeds {
        target(seed);
    }
    let count = std::env::var("SETPOINT_FUZZ_MUTATIONS").map_or(300, |count| count.parse().unwrap());
    let mut random = fastrand::Rng::with_seed(0x05e7_9014);
    for _ in 0..count {
        let mut data = seeds[random.usize(..seeds.len())].clone();
        for _ in 0..random.usize(1..6) {
            mutate(&mut data, &seeds, &mut random);
        }
        let passed = std::panic::catch_unwind(|| target(&data)).is_ok();
        assert!(passed, "{name} fails with {:?}", String::from_utf8_lossy(&data));
    }
}

#[test]
fn seeds_and_their_mutations() {
    for (name, target) in TARGETS {
        println!("{name}");
        run(name, target);
    }
}

#[test]
fn every_target_has_its_program() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/targets");
    let mut programs: Vec<_> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path().file_stem().unwrap().to_string_lossy().into_owned())
        .collect();
    programs.sort();
    assert_eq!(programs, TARGETS.map(|(name, _)| name.to_owned()));
}
