//! Metrics, as Prometheus sees them.

use std::io::Write;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use ringpass_lab::{Namespace, prometheus, wait_until};
use serde_json::Value;

use crate::common::prometheus::{Prometheus, ask};
use crate::common::{RINGPASS, for_everybody, text};

/// Joins two TAPs of a switch in `host`, each with a network stack of its own.
fn ends(host: &Namespace) -> (Namespace, Namespace) {
    let end = |interface, address| {
        wait_until("the TAP", || host.ip(&["link"]).contains(&format!(" {interface}:")));
        let namespace = Namespace::new();
        namespace.take(host, interface, address);
        namespace
    };
    (end("ta", "198.18.0.1/24"), end("tb", "198.18.0.2/24"))
}

fn ping(from: &Namespace) {
    let said = from.run(&["ping", "-q", "-i", "0.01", "-c", "100", "-w", "30", "198.18.0.2"]);
    assert!(said.contains("100 received, 0% packet loss"), "{said}");
}

/// Returns the queries of the dashboard, with an interval in place of Grafana's variables.
fn dashboard() -> Vec<String> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../dashboards/grafana.json");
    let dashboard: Value = serde_json::from_str(&std::fs::read_to_string(path).expect("the file")).expect("JSON");
    let panels = dashboard["panels"].as_array().expect("panels");
    let targets = panels.iter().flat_map(|panel| panel["targets"].as_array().expect("targets"));
    let text = |target: &Value| target["expr"].as_str().expect("a query").to_owned();
    targets.map(text).map(|query| query.replace("$__rate_interval", "10s").replace("$port", ".*")).collect()
}

#[test]
fn prometheus_scrapes_and_the_dashboard_shows_it() {
    let host = Namespace::new();
    host.ip(&["link", "set", "lo", "up"]);
    let switch = host.spawn(&[RINGPASS, "switch", "tap:ta", "tap:tb", "--metrics", "127.0.0.1:9184", "--json"]);
    let (one, _other) = ends(&host);
    ping(&one);
    let prometheus = Prometheus::start(&host, "127.0.0.1:9184");
    // Counters are those of the switch, whatever came since.
    let sums = prometheus.query("sum by (port) (ringpass_port_received_packets_total)");
    let port = |name: &str| sums.iter().find(|sum| sum["metric"]["port"] == name).expect("the port");
    let count =
        |name: &str| port(name)["value"][1].as_str().and_then(|text| text.parse::<f64>().ok()).expect("a number");
    assert!(count("tap:ta") >= 100.0 && count("tap:tb") >= 100.0, "{sums:?}");
    let labels = prometheus.query("ringpass_port_up");
    assert!(labels.iter().all(|value| value["metric"]["switch"] == "switch" && value["value"][1] == "1"), "{labels:?}");
    // Every query of the dashboard has values while frames pass.
    let mut queries = dashboard();
    assert!(queries.len() >= 10);
    wait_until("values for all queries", || {
        ping(&one);
        queries.retain(|one| prometheus.query(one).is_empty());
        queries.is_empty()
    });
    drop(prometheus);
    switch.signal("TERM");
    assert_eq!(switch.wait(Duration::from_secs(20)).status, Some(0));
}

#[test]
fn the_text_is_right_and_whoever_asks_wrongly_is_told() {
    let host = Namespace::new();
    let (folder, _) = for_everybody();
    let place = folder.path().join("metrics");
    let everybody = format!("{},mode=0666", text(&place));
    let switch = host.spawn(&[RINGPASS, "switch", "tap:ta", "tap:tb", "--metrics", &everybody, "--json"]);
    let (one, _other) = ends(&host);
    ping(&one);
    let connect = |place: &Path| {
        let stream = UnixStream::connect(place).expect("it listens");
        stream.set_read_timeout(Some(Duration::from_secs(20))).expect("a limit");
        stream
    };
    let (head, body) = ask(connect(&place), "GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n");
    assert!(head.contains("200 OK") && head.contains("text/plain; version=0.0.4"), "{head}");
    let tool = prometheus("promtool", &["check", "metrics"]);
    let mut promtool = Command::new(&tool[0]);
    promtool.args(&tool[1..]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut promtool = promtool.spawn().expect("it starts");
    promtool.stdin.take().expect("a pipe").write_all(body.as_bytes()).expect("it reads");
    let output = promtool.wait_with_output().expect("it ends");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success() && said.is_empty(), "{said}");
    let open = "GET /metrics HTTP/1.1\r\nAccept: application/openmetrics-text; version=1.0.0\r\n\r\n";
    let (head, body) = ask(connect(&place), open);
    assert!(head.contains("application/openmetrics-text; version=1.0.0") && body.ends_with("# EOF\n"), "{head}");
    for (request, answer) in [
        ("GET / HTTP/1.1\r\n\r\n", "404 Not Found"),
        ("DELETE /metrics HTTP/1.1\r\n\r\n", "405 Method Not Allowed"),
        ("hello\r\n\r\n", "400 Bad Request"),
    ] {
        let (head, _) = ask(connect(&place), request);
        assert!(head.contains(answer), "{head}");
    }
    // Half a request holds up nobody.
    let mut half = connect(&place);
    half.write_all(b"GET /metr").expect("it listens");
    ask(connect(&place), "GET /metrics HTTP/1.1\r\n\r\n");
    switch.signal("TERM");
    assert_eq!(switch.wait(Duration::from_secs(20)).status, Some(0));
    for (wrong, why) in [("9184", "write an address and a port"), ("203.0.113.1:9184", "metrics at 203.0.113.1:9184")] {
        let ended = host.spawn(&[RINGPASS, "fwd", "null", "null", "--metrics", wrong]).wait(Duration::from_secs(20));
        assert!(ended.status == Some(1) && ended.errors.concat().contains(why), "{:?}", ended.errors);
    }
}
