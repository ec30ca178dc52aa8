//! Runs the soak of `make soak`: `soak --seconds N [--seed N] [--json] [--ringpass PATH]`. See `docs/campaigns.md`.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use clap::Parser;
use ringpass_lab::soak::{Settings, run};

/// Kill, stop and restart peers of long-lived processes, next to control pairs that must not lose a frame
#[derive(Parser)]
struct Args {
    /// Seconds during which peers are killed
    #[arg(long, default_value = "60", value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    seconds: u64,
    /// Seed of all delays and choices [default: the time]
    #[arg(long)]
    seed: Option<u64>,
    /// Print progress and summary as JSON, one object a line
    #[arg(long)]
    json: bool,
    /// Path of the program [default: ringpass of the same build]
    #[arg(long, value_name = "PATH")]
    ringpass: Option<PathBuf>,
}

fn main() -> ExitCode {
    let args = Args::parse();
    let beside = || Some(std::env::current_exe().ok()?.parent()?.parent()?.join("ringpass"));
    let Some(ringpass) = args.ringpass.or_else(beside).filter(|path| path.exists()) else {
        eprintln!("soak: no program; run 'cargo build --release', or name it with --ringpass");
        return ExitCode::FAILURE;
    };
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        if let Err(error) = signal_hook::flag::register(signal, stop.clone()) {
            eprintln!("soak: taking Ctrl-C: {error}");
            return ExitCode::FAILURE;
        }
    }
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(1, |now| now.as_secs());
    let (time, seed) = (Duration::from_secs(args.seconds), args.seed.unwrap_or(now));
    let settings = Settings { ringpass, time, seed, judge_stalls: true };
    eprintln!("soak of {} s; the same delays again with --seed {}", args.seconds, settings.seed);
    let mut progress = |summary: &ringpass_lab::soak::Summary| {
        if args.json { println!("{}", summary.json()) } else { println!("{}", summary.progress()) }
    };
    let summary = match run(&settings, &stop, &mut progress) {
        Ok(summary) => summary,
        Err(error) => {
            eprintln!("soak: {error}");
            return ExitCode::FAILURE;
        }
    };
    if args.json {
        println!("{}", summary.json())
    } else {
        println!("\n{summary}")
    }
    if summary.failures().is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
