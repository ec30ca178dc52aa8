//! What bad input gets: one line with cause and remedy, exit status 1, and nothing half done.

mod common;

use common::ringpass;

/// Runs a command that must fail with status 1 and one line that contains all of `parts`.
fn refused(arguments: &[&str], parts: &[&str]) {
    let (status, out, errors) = ringpass(arguments);
    assert_eq!((status, out.as_str()), (Some(1), ""), "{arguments:?}: {errors}");
    let line = errors.lines().last().unwrap_or_default();
    assert!(line.starts_with("ringpass: "), "{arguments:?}: {errors}");
    assert_eq!(errors.lines().filter(|line| line.starts_with("ringpass: ")).count(), 1, "{errors}");
    for part in parts {
        assert!(line.contains(part), "{arguments:?}: '{part}' is not in: {line}");
    }
}

#[test]
fn addresses() {
    refused(&["fwd", "eth0", "null"], &["eth0", "packet:NAME"]);
    refused(&["fwd", "tap:", "null"], &["tap:NAME"]);
    refused(&["fwd", "packet:does-not-exist", "null"], &["does-not-exist"]);
    refused(&["fwd", "model,device=1234:null", "null"], &["1234", "10fb"]);
    refused(&["fwd", "ffff:ff:1f.7", "null"], &["ffff:ff:1f.7", "ringpass list"]);
    refused(&["fwd", "model:null", "null", "--queues", "17"], &["17", "1 to 16"]);
}

#[test]
fn cards_of_others() {
    // Any device of this machine: whatever it is, there is no driver for it here, or it is in use. Nothing is touched.
    let Some(device) = std::fs::read_dir("/sys/bus/pci/devices").into_iter().flatten().flatten().next() else {
        return; // a machine without PCI has no card to refuse
    };
    let address = device.file_name().into_string().unwrap();
    let driver = || std::fs::read_link(device.path().join("driver")).ok();
    let before = driver();
    refused(&["fwd", &address, "null"], &[&address]);
    assert_eq!(driver(), before, "the kernel driver of a refused card");
}

#[test]
fn too_few_huge_pages() {
    // More than are free, unless somebody reserved them: then it runs for a second, and this fails.
    refused(
        &[
            "fwd",
            "model:null",
            "null",
            "--hugepages",
            "on",
            "--queues",
            "16",
            "--rxd",
            "4096",
            "--txd",
            "4096",
            "-t",
            "1",
        ],
        &["huge pages", "are needed", "are free", "nr_hugepages"],
    );
}

#[test]
fn permissions() {
    // Without capabilities: in a user namespace there is root, but no right over interfaces outside.
    let Ok(output) = std::process::Command::new("setpriv")
        .args(["--reuid", "65534", "--regid", "65534", "--clear-groups"])
        .args([common::RINGPASS, "fwd", "tap:rpdenied", "null"])
        .output()
    else {
        panic!("this test needs the program setpriv (util-linux)");
    };
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{errors}");
    assert!(errors.contains("root") && errors.lines().last().unwrap().starts_with("ringpass: "), "{errors}");
}

#[test]
fn command_line() {
    let (status, _, errors) = ringpass(&["fwd", "null", "null", "--batch", "0"]);
    assert_eq!(status, Some(2), "{errors}");
    let (status, _, errors) = ringpass(&["fwd", "null", "null", "--rxd", "100"]);
    assert_eq!(status, Some(2), "{errors}");
    assert!(errors.contains("power of two"), "{errors}");
    for command in ["demo", "fwd", "pktgen", "dump", "echo", "ping", "list", "doctor", "bench"] {
        let (status, out, _) = ringpass(&[command, "--help"]);
        assert_eq!(status, Some(0));
        assert!(out.contains("EXAMPLES"), "{command} --help has no examples");
    }
}

#[test]
fn frames_longer_than_the_mtu() {
    refused(&["pktgen", "model:null", "--size", "1514", "--mtu", "1000"], &["1514", "--mtu 1000", "1014"]);
    refused(&["ping", "null", "--size", "1514", "--mtu", "1000"], &["1514", "1014"]);
}
