//! The log: its forms, and systemd's journal.

use std::os::unix::net::UnixDatagram;
use std::time::Duration;

use ringpass_lab::{Ended, Namespace, Program, wait_until};
use serde_json::Value;

use crate::common::{RINGPASS, for_everybody, text};

/// A switch of which two ports go away when their interfaces are deleted.
const SWITCH: [&str; 5] = ["switch", "xdp:va", "xdp:vb", "tap:one", "tap:two"];

fn host() -> Namespace {
    let host = Namespace::new();
    host.ip(&["link", "add", "name", "va", "type", "veth", "peer", "name", "vb"]);
    for name in ["va", "vb"] {
        host.ip(&["link", "set", name, "up"]);
    }
    host
}

/// Deletes both interfaces once the switch runs, and ends it when it has noticed.
fn lose_ports(host: &Namespace, switch: Program, noticed: impl FnMut() -> bool) -> Ended {
    wait_until("the first line", || !switch.line().is_empty());
    host.ip(&["link", "delete", "va"]);
    wait_until("both ports to be missed", noticed);
    switch.signal("INT");
    let ended = switch.wait(Duration::from_secs(20));
    assert_eq!(ended.status, Some(0), "{:?}", ended.errors);
    ended
}

#[test]
fn lines_are_text_or_json() {
    for form in ["text", "json"] {
        let host = host();
        let switch = host.spawn(&[&[RINGPASS, "--log", form], &SWITCH[..], &["--json"]].concat());
        let mut looks = 0;
        // The errors are read at the end; the ports are looked at 20 times a second.
        let ended = lose_ports(&host, switch, || {
            looks += 1;
            std::thread::sleep(Duration::from_millis(100));
            looks > 10
        });
        let missed = ended.errors.iter().filter(|line| line.contains("the port has left the switch"));
        let missed: Vec<&String> = missed.collect();
        assert_eq!(missed.len(), 2, "{:?}", ended.errors);
        for line in missed {
            match form {
                "json" => {
                    let entry: Value = serde_json::from_str(line).expect("JSON");
                    assert_eq!(entry["level"], "WARN", "{entry}");
                    assert!(entry["message"].as_str().is_some_and(|text| text.starts_with("xdp:v")), "{entry}");
                }
                _ => assert!(line.contains("WARN xdp:v"), "{line}"),
            }
        }
    }
}

#[test]
fn the_journal_of_systemd_gets_entries_of_its_own_form() {
    let host = host();
    let (folder, _) = for_everybody();
    let journal = UnixDatagram::bind(folder.path().join("socket")).expect("a socket");
    journal.set_nonblocking(true).expect("a socket");
    // In place of the machine's own journal, for this program alone.
    let run = "mount -t tmpfs none /run && mkdir -p /run/systemd/journal && mount --bind \"$1\" /run/systemd/journal && shift && exec \"$@\"";
    let program = ["unshare", "-m", "sh", "-c", run, "sh", text(folder.path()), RINGPASS, "--log", "journal"];
    let switch = host.spawn(&[&program[..], &SWITCH, &["--json"]].concat());
    let mut entries = Vec::new();
    lose_ports(&host, switch, || {
        let mut entry = [0; 4096];
        while let Ok(len) = journal.recv(&mut entry) {
            entries.push(entry[..len].to_vec());
        }
        entries.len() >= 2
    });
    for entry in &entries {
        let text = String::from_utf8_lossy(entry).into_owned();
        assert!(text.starts_with("PRIORITY=4\nSYSLOG_IDENTIFIER=ringpass\nTARGET=ringpass_cli::"), "{text}");
        let at = entry.windows(8).position(|part| part == b"MESSAGE\n").expect("a message") + 8;
        let len = u64::from_le_bytes(entry[at..at + 8].try_into().expect("eight bytes")) as usize;
        let message = &entry[at + 8..at + 8 + len];
        assert!(message.ends_with(b"the port has left the switch") && entry[at + 8 + len..] == *b"\n", "{text}");
    }
}
