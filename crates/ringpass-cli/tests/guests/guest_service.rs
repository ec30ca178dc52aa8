//! A service that is operated: guests, a TAP and a card on one switch, changed and watched while frames pass.

use std::path::Path;
use std::time::Duration;

use ringpass_lab::{Builder, Guest, VhostUser};
use serde_json::Value;

use crate::common::guest::answered;
use crate::common::prometheus::Prometheus;
use crate::common::vhost::{serve, up};
use crate::common::{Ended, Namespace, Program, RINGPASS, folder, run, text, unique, wait_until};

/// Returns the file of the service: its guests, its card, and this TAP.
fn content(place: &Path, tap: &str, third: bool) -> String {
    let guest = |name: &str| {
        let socket = place.join(name);
        format!("[[switch.port]]\naddress = \"vhost:{}\"\nname = \"{name}\"\n", text(&socket))
    };
    let third = if third { guest("three") } else { String::new() };
    format!(
        "[options]\nhugepages = \"off\"\n\
         [control]\nsocket = \"{}\"\n\
         [metrics]\nlisten = \"127.0.0.1:9184\"\n\
         [[switch]]\nname = \"lan\"\n\
         {}{}{third}\
         [[switch.port]]\naddress = \"vfio-user:{}\"\nname = \"card\"\n\
         [[switch.port]]\naddress = \"tap:{tap}\"\n",
        text(&place.join("control")),
        guest("one"),
        guest("two"),
        text(&place.join("card")),
    )
}

/// Returns a guest whose card holds frames for seconds, in which emulation may stand still.
fn guest(socket: &Path) -> Builder {
    Guest::new().vhost_user_nic("virtio-net-pci,rx_queue_size=1024,tx_queue_size=1024", &VhostUser::at(socket))
}

/// Gives a guest its address.
fn settle(guest: &Guest, number: u8) {
    serve(guest);
    up(guest, 0, 0);
    guest.run(&format!(
        "ip link set v0 address 02:00:00:00:05:0{number} up; ip address flush dev v0
         ip address add 198.18.0.{number}/24 dev v0"
    ));
}

/// Moves a TAP of the service into a namespace of its own.
fn station(host: &Namespace, tap: &str, number: u8) -> Namespace {
    wait_until("the TAP", || host.ip(&["link"]).contains(&format!(" {tap}:")));
    let station = Namespace::new();
    station.take(host, tap, &format!("198.18.0.{number}/24"));
    station
}

/// Sends 50 pings, of which none may be lost.
fn pings(station: &Namespace, to: u8) {
    let to = format!("198.18.0.{to}");
    station.run(&["ping", "-c", "1", "-w", "60", &to]);
    let said = station.run(&["ping", "-c", "50", "-i", "0.01", "-w", "60", &to]);
    assert!(answered(&said, 50), "{said}");
}

/// Returns the screen of `ringpass top` in a terminal of tmux, once it shows all of `wanted`, and the frames of the first guest.
fn screen_of_top(control: &Path, wanted: &[&str]) -> String {
    let server = unique("top");
    let tmux = |arguments: &[&str]| run(&[&["tmux", "-L", &server, "-f", "/dev/null"], arguments].concat());
    let command = format!("{RINGPASS} top --socket {}", text(control));
    tmux(&["new-session", "-d", "-x", "110", "-y", "30", &command]);
    let mut screen = String::new();
    wait_until("the screen", || {
        screen = tmux(&["capture-pane", "-p"]);
        // Rates are known from the second look on.
        let moves = screen.lines().any(|line| line.starts_with("one ") && !line.contains(" 0 pps"));
        moves && wanted.iter().all(|part| screen.contains(part))
    });
    tmux(&["send-keys", "q"]);
    // tmux ends with its only program.
    wait_until("top to end", || {
        let listing = ["tmux", "-L", &server, "list-sessions"];
        Program::spawn(&listing).wait(Duration::from_secs(20)).status != Some(0)
    });
    screen
}

#[test]
fn a_service_is_changed_and_watched_while_numbered_frames_pass() {
    let folder = folder();
    let place = folder.path();
    let control = place.join("control");
    let (host, file) = (Namespace::new(), place.join("service.toml"));
    host.ip(&["link", "set", "lo", "up"]);
    let [first, second, far] = ["ta", "tb", "tw"].map(unique);
    std::fs::write(&file, content(place, &first, false)).expect("a file");
    let (card, wire) = (place.join("card"), format!("tap:{far}"));
    let model = host.spawn(&[RINGPASS, "model", "82599", "--socket", text(&card), "--wire", &wire]);
    wait_until("the card", || card.exists());
    let service = host.spawn(&[RINGPASS, "run", text(&file), "--json"]);
    let [wire, tap] = [(&far, 11), (&first, 12)].map(|(tap, number)| station(&host, tap, number));
    let [one, two] = Builder::boot_all(["one", "two"].map(|name| guest(&place.join(name))));
    settle(&one, 1);
    settle(&two, 2);
    for (from, to) in [(&wire, 1), (&tap, 2), (&wire, 12)] {
        pings(from, to);
    }
    // Numbered frames from one guest to the other and back, until the end.
    one.run("ping -c 1 -w 60 198.18.0.2");
    let load = one.spawn("ping -i 0.004 198.18.0.2 & echo $! >/run/load; wait");
    let ringpass = |arguments: &[&str]| {
        let Ended { status, lines, errors } =
            host.spawn(&[&[RINGPASS], arguments].concat()).wait(Duration::from_secs(60));
        assert_eq!(status, Some(0), "{arguments:?}: {errors:?}");
        lines
    };
    // A third guest comes.
    let address = format!("vhost:{}", text(&place.join("three")));
    ringpass(&["ctl", "--socket", text(&control), "add", "lan", &address, "--name", "three"]);
    let three = guest(&place.join("three")).boot();
    settle(&three, 3);
    pings(&wire, 3);
    // The file says so too, and has another TAP in place of the first.
    std::fs::write(&file, content(place, &second, true)).expect("a file");
    let changes = ringpass(&["apply", text(&file), "--socket", text(&control)]);
    assert_eq!(changes, [format!("- tap:{first}"), format!("+ tap:{second} (lan)")]);
    drop(tap);
    let tap = station(&host, &second, 12);
    pings(&tap, 3);
    // All of it is seen.
    let prometheus = Prometheus::start(&host, "127.0.0.1:9184");
    let ports = prometheus.query("ringpass_port_received_packets_total{switch=\"lan\"}");
    let mut names: Vec<&str> = ports.iter().filter_map(|port| port["metric"]["port"].as_str()).collect();
    names.sort_unstable();
    let own = format!("tap:{second}");
    assert_eq!(names, ["card", "one", &own, "three", "two"]);
    wait_until("a rate of the guests", || {
        let rates = prometheus.query("rate(ringpass_port_received_packets_total{port=\"one\"}[10s]) > 50");
        rates.len() == 1
    });
    drop(prometheus);
    let screen = screen_of_top(&control, &["ringpass run", "three", "card", &own, "pps"]);
    let kept = Path::new(env!("CARGO_TARGET_TMPDIR")).join("top.txt");
    std::fs::write(&kept, &screen).expect("room for the screen");
    // None of the numbered frames was lost, or came twice.
    one.run("kill -INT $(cat /run/load)");
    let said = one.wait(&load, Duration::from_secs(60)).text;
    let numbers: Vec<usize> =
        said.lines().filter_map(|line| line.split("icmp_seq=").nth(1)?.split(' ').next()?.parse().ok()).collect();
    let last = said.lines().rev().take(3).collect::<Vec<_>>().join("; ");
    assert!(numbers.len() > 1000 && numbers.iter().copied().eq(1..=numbers.len()), "{last}");
    eprintln!("{} numbered frames, none lost", numbers.len());
    service.signal("TERM");
    let Ended { status, lines, errors } = service.wait(Duration::from_secs(60));
    assert_eq!(status, Some(0), "{errors:?}");
    let summary: Value = serde_json::from_str(lines.last().expect("a summary")).expect("JSON");
    assert_eq!(summary["event"], "summary");
    let ports = summary["ports"].as_array().expect("ports");
    assert_eq!(ports.len(), 5, "{summary}");
    for port in ports {
        assert!(port["rx_packets"].as_u64() > Some(50) && port["tx_packets"].as_u64() > Some(50), "{port}");
        assert_eq!(port["extended"]["guest_faults"].as_u64().unwrap_or(0), 0, "{port}");
    }
    model.signal("TERM");
    assert_eq!(model.wait(Duration::from_secs(20)).status, Some(0));
}
