//! Back-ends are killed.

use std::fs::{Permissions, set_permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use crate::common::line::Line;
use crate::common::vhost::socket;
use crate::common::*;
use crate::vhost_kills::{AT_WORK, Held, Lives, RINGS, ROUND, has_moved, start};

/// The front-end creates the socket. Back-ends connect to it from their sandbox, where they run as another
/// user.
fn for_everybody(path: &Path) {
    wait_until("the socket", || path.exists());
    set_permissions(path.parent().expect("a folder"), Permissions::from_mode(0o755)).expect("its owner");
    set_permissions(path, Permissions::from_mode(0o666)).expect("its owner");
}

/// A generator continues with one back-end after the other.
#[test]
fn back_ends_of_a_generator() {
    const KILLS: u32 = 60;
    for (rings, seed) in RINGS.into_iter().zip(40..) {
        let folder = folder();
        let path = socket(&folder, 0);
        let generator = start(&["pktgen", &format!("virtio-user:{},server{rings}", text(&path)), "--rate", "20k"]);
        for_everybody(&path);
        let vhost = format!("vhost:{},client", text(&path));
        let mut held = None;
        // The first back-end answers the feature queries before the generator starts.
        let mut lives = Lives::after(seed, start(&["echo", &vhost, "--count", "200"]));
        for kills in 1..=KILLS {
            lives.end(start(&["echo", &vhost]));
            if kills % ROUND == 0 {
                lives.whole(start(&["echo", &vhost, "--count", "200"]));
                held.get_or_insert_with(|| Held::without_peers(generator.id()));
            }
        }
        held.expect("some rounds").no_more();
        let summary = generator.summary();
        let (card, returned) = (&summary["ports"][0]["extended"], summary["returned"].as_u64());
        eprintln!("{KILLS} back-ends of a generator, '{rings}': {card}, {returned:?} frames returned");
        assert!(returned > Some(200 * u64::from(KILLS / ROUND)), "{summary}");
        assert_eq!((&summary["duplicate"], &summary["reordered"]), (&0.into(), &0.into()), "{summary}");
        assert!(card["reconnects"].as_u64() > Some((KILLS / AT_WORK).into()), "{summary}");
    }
}

/// All frames and buffers are accounted for.
#[test]
fn back_ends_of_a_port_in_this_process() {
    for features in ["", "-in_order", "-packed", "-packed-in_order"] {
        let mut line = Line::new(features);
        (0..30).for_each(|_| line.restart());
        eprint!("back-ends of a port, '{features}': ");
        line.end();
    }
}

/// With a card, which receives into the buffers of the front-end that stays.
#[test]
fn back_ends_with_a_card() {
    const KILLS: u32 = 120;
    let folder = folder();
    let path = socket(&folder, 0);
    let echo = start(&["echo", &format!("virtio-user:{},server,features=-in_order", text(&path))]);
    for_everybody(&path);
    let (host, tap) = (Namespace::new(), unique("tk"));
    host.run(&["ip", "tuntap", "add", "dev", &tap, "mode", "tap"]);
    host.run(&["ip", "address", "add", "198.18.3.1/24", "dev", &tap]);
    host.run(&["ip", "link", "set", &tap, "up"]);
    host.neighbour(&tap, "198.18.3.2", "02:00:00:00:02:03");
    let _pings = host.spawn(&["ping", "-q", "-i", "0.001", "198.18.3.2"]);
    let (card, vhost) = (format!("model:tap:{tap}"), format!("vhost:{},client", text(&path)));
    let back_end = |options: &[&str]| {
        let command = [RINGPASS, "fwd", "--map", &card, &vhost, "--json", "--hugepages", "off"];
        host.spawn(&[&command, options].concat())
    };
    let (mut lives, mut held) = (Lives::after(5, back_end(&["--count", "100"])), None);
    for kills in 1..=KILLS {
        lives.end(back_end(&[]));
        if kills % ROUND == 0 {
            lives.whole(back_end(&["--count", "100"]));
            held.get_or_insert_with(|| Held::without_peers(echo.id()));
        }
    }
    held.expect("some rounds").no_more();
    let last = has_moved(back_end(&["--count", "300"]));
    assert!(last["ports"][1]["extended"]["mapped_packets"].as_u64() > Some(100), "{last}");
    let summary = echo.summary();
    let card = &summary["ports"][0]["extended"];
    eprintln!("{KILLS} back-ends with a card: {card}");
    assert!(card["reconnects"].as_u64() > Some((KILLS / AT_WORK).into()), "{summary}");
}
