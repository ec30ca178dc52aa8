//! Answers to those who ask over a control socket, made of the status that `ringpass vale` prints.

use std::collections::BTreeMap;
use std::time::Duration;

use ringpass::Stats;
use ringpass::control::{PortStatus, Request, Status, SwitchStatus};
use serde_json::{Value, json};

use crate::metrics;

/// Answers a request.
///
/// # Errors
/// Why not, in a line.
pub fn answer(request: &Request, all: &Value, elapsed: Duration) -> Result<Value, String> {
    match request {
        Request::Status => serde_json::to_value(status(all, elapsed)).map_err(|error| error.to_string()),
        Request::Metrics { format } => metrics::encode(status(all, elapsed), *format).map(Value::from),
        Request::Stations { switch } => stations(all, switch.as_deref()),
        Request::Plan => Err("this program does not run from a file".into()),
        Request::Add { .. } | Request::Set { .. } | Request::Remove { .. } => {
            Err("ports of netmapd are changed by 'ringpass vale' and by programs".into())
        }
        Request::Capture { .. } => Err("open a monitor of the port instead, such as netmap:NAME/rt".into()),
        Request::Step { .. } => Err("netmapd has no software cards".into()),
        // The control server's own.
        Request::Events => Ok(json!({})),
    }
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

fn stats(value: &Value) -> Stats {
    serde_json::from_value(value.clone()).unwrap_or_default()
}

/// Returns the counters of an object, other than those of frames.
fn further(value: &Value) -> BTreeMap<String, u64> {
    let counts = value.as_object().into_iter().flatten();
    let counts = counts.filter(|(name, _)| !name.starts_with("rx_") && !name.starts_with("tx_"));
    counts.filter_map(|(name, count)| Some((name.clone(), count.as_u64()?))).collect()
}

/// Returns a port of a switch.
fn of_switch(switch: &Value, port: &str, address: String, counters: &Value) -> PortStatus {
    let name = text(&switch["switch"]);
    let mut extended = further(counters);
    extended.extend(further(&switch["counts"][port]));
    PortStatus {
        name: format!("{name}:{port}"),
        address,
        switch: Some(name),
        state: "running".into(),
        link: true,
        stats: stats(counters),
        extended,
        ..PortStatus::default()
    }
}

/// Returns the status.
fn status(all: &Value, elapsed: Duration) -> Status {
    let mut ports = Vec::new();
    let mut switches = Vec::new();
    for switch in list(&all["switches"]) {
        let first = ports.len();
        for attached in list(&switch["attached"]) {
            let port = text(&attached["port"]);
            ports.push(of_switch(switch, &port, port.clone(), &attached["stats"]));
        }
        let prefix = format!("{}:", text(&switch["switch"]));
        for program in list(&all["vale"]) {
            let name = text(&program["port"]);
            if let Some(port) = name.strip_prefix(&prefix) {
                ports.push(of_switch(switch, port, name.clone(), &program["counters"]));
            }
        }
        switches.push(SwitchStatus {
            name: text(&switch["switch"]),
            ports: ports[first..].iter().map(|port| port.name.clone()).collect(),
            stations: list(&switch["stations"]).len() as u64,
            ended: false,
        });
    }
    for native in list(&all["ports"]) {
        let status = &native["status"];
        ports.push(PortStatus {
            name: format!("netmap:{}", text(&native["port"])),
            address: text(&status["address"]),
            state: "running".into(),
            mac: text(&status["mac"]),
            link: status["link"] == true,
            mbps: status["mbps"].as_u64().unwrap_or_default() as u32,
            stats: stats(&status["stats"]),
            extended: further(&json!({ "received_for_nobody": status["dropped"] })),
            ..PortStatus::default()
        });
    }
    let count = |key: &str| all["common"][key].as_u64().unwrap_or_default();
    Status {
        seconds: elapsed.as_secs_f64(),
        offloads: "none".into(),
        ports,
        switches,
        buffers: count("buffers"),
        buffers_in_use: count("buffers").saturating_sub(count("free")),
        ..Status::default()
    }
}

/// Returns the stations of a switch, or of all.
fn stations(all: &Value, switch: Option<&str>) -> Result<Value, String> {
    let switches = list(&all["switches"]);
    if let Some(other) = switch.filter(|name| switches.iter().all(|there| there["switch"] != *name)) {
        return Err(format!("there is no switch '{other}'"));
    }
    let wanted = switches.iter().filter(|there| switch.is_none_or(|name| there["switch"] == name));
    let stations = wanted.flat_map(|switch| {
        let name = text(&switch["switch"]);
        list(&switch["stations"]).iter().map(move |station| {
            let port = format!("{name}:{}", text(&station["port"]));
            json!({ "mac": station["mac"], "vlan": 0, "port": port, "switch": name, "seconds": station["age"] })
        })
    });
    Ok(stations.collect())
}
