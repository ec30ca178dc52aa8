//! Deterministic mutations of seeds, which replace libFuzzer on stable Rust.

use std::path::Path;

/// Pseudo-random numbers (xorshift64*).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 16
    }

    fn below(&mut self, end: usize) -> usize {
        self.next() as usize % end.max(1)
    }
}

/// Values at the boundaries of typical checks.
const NUMBERS: [u64; 16] =
    [0, 1, 2, 3, 4, 7, 8, 16, 32, 0xfff, 0x1000, 0x7fff_ffff, 0x8000_0000, 0xffff_ffff, u64::MAX - 0xfff, u64::MAX];

fn mutate(case: &mut Vec<u8>, other: &[u8], random: &mut Random) {
    const LONGEST: usize = 4096;
    let at = random.below(case.len());
    match random.below(8) {
        0 if !case.is_empty() => case[at] ^= 1 << random.below(8),
        1 if !case.is_empty() => case[at] = random.next() as u8,
        2..=4 if !case.is_empty() => {
            // A field of 2, 4 or 8 bytes, aligned to 4 behind the case's first byte, as fields of messages are.
            let width = [2, 4, 8][random.below(3)];
            let number = NUMBERS[random.below(NUMBERS.len())].to_ne_bytes();
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
            let from = random.below(other.len());
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

/// Runs the seeds of a target, then `cases` mutations of them.
pub fn run(target: &str, cases: u32, body: impl Fn(&[u8])) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../fuzz/seeds").join(target);
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
    let mut random = Random(0x5eed);
    let mut case = Vec::new();
    for _ in 0..cases {
        case.clone_from(&seeds[random.below(seeds.len())]);
        for _ in 0..=random.below(6) {
            let other = random.below(seeds.len());
            mutate(&mut case, &seeds[other], &mut random);
        }
        run(&case);
    }
}
