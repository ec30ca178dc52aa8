//! `ringpass bench vhost`, `bench pvp` and `bench netmap` with guests: they measure what they claim to measure,
//! and leave nothing behind. The speeds themselves are not checked.

use std::process::Command;
use std::time::Duration;

use crate::common::{Program, RINGPASS, folder, text, wait_until};
use ringpass_lab::Ended;
use serde_json::Value;

fn huge_pages() -> String {
    std::fs::read_to_string("/proc/sys/vm/nr_hugepages").unwrap()
}

/// Returns the running child processes of a process (proc(5), `children`).
fn children(process: u32) -> Vec<String> {
    let tasks = std::fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten().flatten();
    let lists = tasks.map(|task| std::fs::read_to_string(task.path().join("children")).unwrap_or_default());
    lists.flat_map(|list| list.split_whitespace().map(String::from).collect::<Vec<_>>()).collect()
}

/// Runs a bench, which may boot guests, and returns the rows that it prints.
fn rows(arguments: &[&str]) -> Vec<Value> {
    let before = huge_pages();
    let bench = Program::spawn(&[&[RINGPASS, "bench"], arguments, &["--json"]].concat());
    let Ended { status, lines, errors } = bench.wait(Duration::from_secs(300));
    assert_eq!(status, Some(0), "{errors:?}");
    assert_eq!(huge_pages(), before, "huge pages are given back");
    lines.iter().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

fn number(row: &Value, name: &str) -> f64 {
    row[name].as_f64().unwrap_or_else(|| panic!("no {name}: {row}"))
}

#[test]
fn vhost_is_measured_in_all_pairings_beside_dpdk() {
    if crate::common::refused_on_one_cpu("vhost") {
        return;
    }
    let rows = rows(&["vhost", "--rounds", "2", "-t", "0.2", "--size", "64"]);
    // Rounds with near and far cores have rows of their own.
    let rounds: f64 = rows.iter().map(|row| number(row, "rounds")).sum();
    assert_eq!(rounds, (2 * 2 * 4 * 2) as f64, "{rows:?}");
    for row in &rows {
        assert!(number(row, "mpps") > 0.0 && number(row, "cycles_per_packet") > 0.0, "{row}");
        assert!(number(row, "peer_mpps") > 0.0 && number(row, "peer_cycles_per_packet") > 0.0, "{row}");
        assert!(number(row, "mpps_min") <= number(row, "mpps") && number(row, "mpps") <= number(row, "mpps_max"));
        assert!(
            number(row, "ratio") > 0.0 && ["near", "far", "changing"].map(Value::from).contains(&row["cores"]),
            "{row}"
        );
        assert!(row["machine"].as_str().is_some_and(|machine| machine.contains("GHz")), "{row}");
    }
    let all = |name: &str| {
        let mut values: Vec<_> = rows.iter().map(|row| row[name].to_string()).collect();
        values.sort();
        values.dedup();
        values.join(" ")
    };
    assert_eq!(all("ring"), r#""packed" "split""#);
    assert_eq!(all("direction"), r#""from_guest" "to_guest""#);
    assert_eq!(all("pair"), r#""backend" "both" "frontend" "peer""#);
}

#[test]
fn vhost_is_measured_without_a_peer() {
    if crate::common::refused_on_one_cpu("vhost") {
        return;
    }
    let rows = rows(&["vhost", "--peer", "none", "--features", "in-order,mergeable", "--rounds", "1", "-t", "0.2"]);
    assert_eq!(rows.len(), 2 * 2 * 2 * 2, "{rows:?}");
    for row in rows {
        assert!(number(&row, "mpps") > 0.0 && row["pair"] == "both", "{row}");
        assert!(row["ratio"].is_null() && row["peer_mpps"].is_null() && row["met"].is_null(), "{row}");
    }
}

#[test]
fn the_driver_is_measured_beside_dpdk() {
    if crate::common::refused_on_one_cpu("vhost") {
        return;
    }
    let before = huge_pages();
    let rows = rows(&["driver", "--peer", "dpdk", "--rounds", "1", "-t", "0.2"]);
    let drivers: Vec<_> = rows.iter().map(|row| format!("{} {}", row["driver"], row["offloads"])).collect();
    let named = |offloads| ["dpdk_vector", "dpdk_scalar", "ringpass"].map(|name| format!("\"{name}\" {offloads}"));
    assert_eq!(drivers, [named(false), named(true)].concat());
    for row in rows {
        assert!(["mpps", "ratio", "cycles_per_packet"].iter().all(|what| number(&row, what) > 0.0), "{row}");
    }
    assert_eq!(huge_pages(), before);
}

#[test]
fn the_path_through_a_guest_is_measured_beside_dpdk() {
    if crate::common::refused_on_one_cpu("pvp") {
        return;
    }
    let rows = rows(&["pvp", "--peer", "dpdk", "--rounds", "1", "-t", "0.2", "--size", "1514"]);
    let switches: Vec<_> = rows.iter().map(|row| row["switch"].as_str().unwrap()).collect();
    assert_eq!(switches, ["dpdk", "copying", "mapped"]);
    for row in rows {
        assert!(["mpps", "ratio", "switch_cycles"].iter().all(|what| number(&row, what) > 0.0), "{row}");
    }
}

#[test]
fn ctrl_c_ends_the_peer_and_gives_all_back() {
    if crate::common::refused_on_one_cpu("vhost") {
        return;
    }
    let before = huge_pages();
    let bench = Program::spawn(&[RINGPASS, "bench", "vhost", "--ring", "split", "--rounds", "1000", "--json"]);
    wait_until("two processes of DPDK", || children(bench.id()).len() >= 2);
    assert_ne!(huge_pages(), before);
    let peers = children(bench.id());
    bench.signal("INT");
    let Ended { status, errors, .. } = bench.wait(Duration::from_secs(20));
    assert_eq!((status, errors.last().map(String::as_str)), (Some(1), Some("ringpass: interrupted")), "{errors:?}");
    assert_eq!(huge_pages(), before);
    let running = peers.iter().filter(|peer| std::fs::exists(format!("/proc/{peer}")).unwrap_or(true));
    assert_eq!(running.count(), 0);
}

#[test]
fn a_missing_peer_is_said_in_one_line() {
    if crate::common::refused_on_one_cpu("vhost") {
        return;
    }
    let output = Command::new(RINGPASS).args(["bench", "vhost"]).env("PATH", "/nonexistent").output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && errors.lines().count() == 1, "{errors}");
    assert!(errors.contains("apt install dpdk-dev") && errors.contains("--peer none"), "{errors}");
}

#[test]
fn netmap_is_measured_with_guests_beside_virtio_net() {
    if crate::common::refused_on_one_cpu("netmap") {
        return;
    }
    let plots = folder();
    let common =
        ["netmap", "--only", "guests", "--rounds", "1", "-t", "0.1", "--batch", "32", "--svg", text(plots.path())];
    let rows = rows(&common);
    let mut seen: Vec<_> = rows.iter().map(|row| format!("{} {}", row["what"], row["path"]).replace('"', "")).collect();
    seen.sort();
    let mut expected: Vec<String> = ["guest-guest", "guest-host", "host-guest"]
        .iter()
        .flat_map(|path| ["pipe", "vale", "virtio-net"].map(|what| format!("{what} {path}")))
        .filter(|row| row != "virtio-net guest-guest")
        .collect();
    expected.sort();
    assert_eq!(seen, expected);
    for row in &rows {
        assert!(number(row, "mpps") > 0.0 && number(row, "batch") == 32.0 && row["experiment"] == "guests", "{row}");
        assert_eq!(row["kicks_per_million"].is_null(), row["what"] == "virtio-net", "{row}");
        assert!(number(row, "interrupts_per_million") >= 0.0, "{row}");
    }
    let picture = std::fs::read_to_string(plots.path().join("netmap-guests.svg")).unwrap();
    assert!(picture.starts_with("<svg") && picture.contains("guest to host"), "{picture}");
}

#[test]
fn pvp_measures_every_pattern_and_draws() {
    if crate::common::refused_on_one_cpu("pvp") {
        return;
    }
    let plots = folder();
    let common = ["pvp", "--quick", "--size", "64", "--rounds", "1", "-t", "0.05", "--svg", text(plots.path())];
    let rows = rows(&[&common[..], &["--experiment", "patterns,sizes"]].concat());
    let patterns: Vec<_> = rows.iter().filter(|row| row["experiment"] == "patterns").collect();
    assert_eq!(patterns.len(), 2 * 6, "{patterns:?}");
    for row in &rows {
        assert!(number(row, "mpps") > 0.0 && number(row, "ratio") > 0.0, "{row}");
        for thread in ["switch_rx", "switch_tx", "function"] {
            assert!(number(row, &format!("{thread}_cycles")) > 0.0, "{row}");
        }
        let name = row["pattern"].as_str().unwrap();
        assert_eq!(row["mapped"], Value::from(matches!(name, "e" | "f")), "{row}");
        assert!(name != "a" || number(row, "ratio") == 1.0, "{row}");
    }
    for figure in ["figure-11-patterns", "figure-12-sizes"] {
        let picture = std::fs::read_to_string(plots.path().join(format!("{figure}.svg"))).unwrap();
        assert!(picture.starts_with("<svg") && picture.contains("Mpps"), "{figure}");
    }
}

#[test]
fn pvp_sweeps_ring_sizes() {
    if crate::common::refused_on_one_cpu("pvp") {
        return;
    }
    let plots = folder();
    let rows = rows(&[
        "pvp",
        "--quick",
        "--experiment",
        "rings",
        "--pattern",
        "a",
        "--size",
        "64",
        "-t",
        "0.002",
        "--svg",
        text(plots.path()),
    ]);
    let all = |name: &str| {
        let mut values: Vec<_> = rows.iter().map(|row| row[name].as_u64().unwrap()).collect();
        values.sort_unstable();
        values.dedup();
        values
    };
    assert_eq!(all("physical_rx"), [64, 512, 4096]);
    assert_eq!(all("virtual_rx"), [64, 1024, 16_384]);
    assert_eq!(all("virtual_tx"), [256, 1024]);
    assert_eq!(rows.len(), 3 * 3 * 2);
    assert!(plots.path().join("figure-9-rings-64.svg").exists());
}
