//! The program's own command line: what it cannot measure it refuses, in one line and with exit status 1 or 2.

use std::process::Command;

const BENCH: &str = env!("CARGO_BIN_EXE_ringpass-bench");

fn run(arguments: &[&str]) -> (Option<i32>, String, String) {
    let output = Command::new(BENCH).args(arguments).output().expect("the program");
    let text = |bytes| String::from_utf8(bytes).expect("UTF-8");
    (output.status.code(), text(output.stdout), text(output.stderr))
}

#[test]
fn each_benchmark_explains_itself() {
    let (status, help, _) = run(&["--help"]);
    assert_eq!(status, Some(0));
    for benchmark in ["all", "driver", "model", "latency", "idle", "vhost", "pvp", "netmap"] {
        assert!(help.contains(&format!("ringpass bench {benchmark}")), "{benchmark}: {help}");
    }
}

#[test]
fn bad_options_are_refused() {
    let (status, out, error) = run(&["driver", "--batch", "0"]);
    assert_eq!((status, &out[..]), (Some(2), ""));
    assert!(error.contains("--batch"), "{error}");
}

#[test]
fn cards_that_share_a_thread_forward_and_count() {
    let (status, out, error) = run(&["model", "--cards", "2,3", "--rounds", "2", "-t", "0.1", "--json"]);
    assert_eq!(status, Some(0), "{error}");
    let rows: Vec<serde_json::Value> = out.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    assert_eq!(rows.iter().map(|row| row["cards"].as_u64()).collect::<Vec<_>>(), [Some(2), Some(4)]);
    assert!(rows.iter().all(|row| row["packets"].as_u64() > Some(1000) && row["mpps"].as_f64() > Some(0.0)), "{out}");
}
