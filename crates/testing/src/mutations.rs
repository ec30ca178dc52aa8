//! Deterministic mutations of seeds, which replace libFuzzer on stable Rust.

use std::path::Path;

use crate::Random;

/// Values at the boundaries of typical checks.
const NUMBERS: [u64; 16] =
    [0, 1, 2, 3, 4, 7, 8, 16, 32, 0xfff, 0x1000, 0x7fff_ffff, 0x8000_0000, 0xffff_ffff, u64::MAX - 0xfff, u64::MAX];

fn mutate(case: &mut Vec<u8>, other: &[u8], random: &mut Random) {
    const LONGEST: usize = 4096;
    let at = random.index(case.len());
    match random.index(8) {
        0 if !case.is_empty() => case[at] ^= 1 << random.index(8),
        1 if !case.is_empty() => case[at] = random.next() as u8,
        2..=4 if !case.is_empty() => {
            // A field of 2, 4 or 8 bytes, aligned to 4 behind the case's first byte, as fields of messages are.
            let width = [2, 4, 8][random.index(3)];
            let number = NUMBERS[random.index(NUMBERS.len())].to_ne_bytes();
            let at = 1 + at / 4 * 4;
            let fits = width.min(case.len().saturating_sub(at));
            case.iter_mut().skip(at).zip(&number[..fits]).for_each(|(byte, &new)| *byte = new);
        }
        5 => case.truncate(at),
        6 => {
            let more: Vec<u8> = case[at..].iter().copied().take(64).collect();
            case.splice(at..at, more);
        }
        _ => {
            let from = random.index(other.len());
            case.truncate(at);
            case.extend_from_slice(&other[from..]);
        }
    }
    case.truncate(LONGEST);
}

/// Prints the running case when it panics.
struct Report<'a>(&'a [u8]);

impl Drop for Report<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("the case: {:02x?}", self.0);
        }
    }
}

/// Runs the seeds of a target, then `cases` mutations of them, which are the same each time.
///
/// # Panics
///
/// If `body` does; the case is printed.
pub fn run(target: &str, cases: u32, body: impl Fn(&[u8])) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/seeds").join(target);
    let mut seeds: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    seeds.sort();
    let seeds: Vec<Vec<u8>> = seeds.iter().map(|path| std::fs::read(path).unwrap()).collect();
    assert!(seeds.len() >= 3, "seeds of {target}");
    let run = |case: &[u8]| {
        let report = Report(case);
        body(case);
        drop(report);
    };
    seeds.iter().for_each(|seed| run(seed));
    let mut random = Random::new(0x5eed);
    let mut case = Vec::new();
    for _ in 0..cases {
        case.clone_from(&seeds[random.index(seeds.len())]);
        for _ in 0..=random.index(6) {
            let other = random.index(seeds.len());
            mutate(&mut case, &seeds[other], &mut random);
        }
        run(&case);
    }
}
