//! The Debian package on a machine of its own: installed, run as a service by systemd with a guest attached, started anew and upgraded while the
//! guest's frames pass, and removed.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::Duration;

use ringpass_lab::{Builder, Container, Guest, VhostUser};
use ringpass_netmap::client::Port;
use ringpass_netmap::request::Register;

use crate::common::browser::{Browser, Look};
use crate::common::netmap::{frame, number, receive, send};
use crate::common::vhost::{serve, up};
use crate::common::{run, text, tshark, wait_until};

const TREE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

/// Packages: the program's, as an older version too, and that of its symbols.
struct Packages {
    old: PathBuf,
    new: PathBuf,
    symbols: PathBuf,
}

impl Packages {
    /// Makes them of what Cargo has built for tests.
    fn make(folder: &Path) -> Self {
        let built = ringpass_lab::built("ringpass");
        let built = text(built.parent().expect("a folder"));
        let made = run(&["env", &format!("BUILT={built}"), &format!("{TREE}/scripts/deb")]);
        let [symbols, new] = ["ringpass-dbg_", "ringpass_"].map(|name| {
            let made = made.lines().find(|path| path.contains(&format!("/{name}"))).expect("a package");
            let moved = folder.join(format!("{name}.deb"));
            std::fs::rename(made, &moved).expect("the same disk");
            moved
        });
        let (old, unpacked) = (folder.join("old.deb"), folder.join("unpacked"));
        run(&["dpkg-deb", "-R", text(&new), text(&unpacked)]);
        run(&["sed", "-i", "s/^Version: .*/Version: 0.0.9-1/", text(&unpacked.join("DEBIAN/control"))]);
        run(&["dpkg-deb", "--root-owner-group", "--build", text(&unpacked), text(&old)]);
        Self { old, new, symbols }
    }
}

/// Builds the container image of the package, on a Debian without a network, and runs the driver in it.
fn image(deb: &Path, folder: &Path) {
    let (context, tree, store) = (folder.join("context"), folder.join("tree"), folder.join("images"));
    let debian = context.join("target/debian");
    [&debian, &tree].into_iter().for_each(|folder| std::fs::create_dir_all(folder).expect("a folder"));
    std::fs::copy(deb, debian.join("ringpass_0_amd64.deb")).expect("room for the package");
    run(&["tar", "--zstd", "-C", text(&tree), "-xpf", &format!("{TREE}/lab/systemd.tar.zst")]);
    let runs = folder.join("run");
    let buildah = |arguments: &[&str]| {
        let store = ["buildah", "--root", text(&store), "--runroot", text(&runs), "--storage-driver", "vfs"];
        run(&[&store, arguments].concat()).trim().to_owned()
    };
    let base = buildah(&["from", "scratch"]);
    buildah(&["add", "--quiet", &base, text(&tree), "/"]);
    buildah(&["commit", "--quiet", &base, "localhost/base"]);
    let file = format!("{TREE}/packaging/Containerfile");
    let build = ["build", "--quiet", "--isolation", "chroot", "--build-arg", "BASE=localhost/base", "--file", &file];
    buildah(&[&build[..], &["--tag", "ringpass", text(&context)]].concat());
    let container = buildah(&["from", "localhost/ringpass"]);
    let pktgen = ["ringpass", "pktgen", "model:null", "--count", "1000", "--no-sandbox", "--json"];
    let said = buildah(&[&["run", "--isolation", "chroot", &container, "--"], &pktgen[..]].concat());
    assert!(said.contains(r#""event":"summary""#), "{said}");
    buildah(&["rm", "--all"]);
    buildah(&["rmi", "--all", "--force"]);
}

/// The service: a switch with a software card, a TAP that an administrator has made, and a guest.
const FILE: &str = r#"
[options]
hugepages = "off"

[control]
socket = "/run/ringpass/control"

[metrics]
listen = "127.0.0.1:9184"

[web]
listen = "127.0.0.1:8080"

[[switch]]
name = "lan"
[[switch.port]]
address = "model:null"
name = "card"
[[switch.port]]
address = "tap:host"
[[switch.port]]
address = "vhost:/run/ringpass/guest,mode=0666"
name = "guest"
"#;

/// Returns all files of the container that are on its disk, without those that its system writes of itself.
fn files(container: &Container) -> BTreeSet<String> {
    let found = container.run(
        "find / -xdev \\( -path /var/log -o -path /var/lib/dpkg -o -path /var/cache -o -path /tmp -o -path /var/tmp -o -path /var/lib/systemd \\) -prune -o -print",
    );
    found.lines().map(str::to_owned).collect()
}

/// Returns a property of the service.
fn property(container: &Container, name: &str) -> String {
    container.run(&format!("systemctl show --value --property {name} ringpass@lan")).trim().to_owned()
}

fn install(container: &Container, deb: &Path) {
    std::fs::copy(deb, container.path("/root/ringpass.deb")).expect("room for the package");
    container.run("dpkg --install /root/ringpass.deb 2>&1; status=$?; rm /root/ringpass.deb; exit $status");
}

/// Numbered frames between two netmap programs, from one to the other.
struct Load {
    end: Arc<AtomicBool>,
    sender: JoinHandle<u64>,
    receiver: JoinHandle<u64>,
}

impl Load {
    /// Opens the two ports at this socket, and sends 100 frames a second. While nobody serves a switch, they wait in the sender's ring,
    /// and come all at once afterwards: as many as the receiver's ring has slots for, if that took less than ten seconds. With more,
    /// a switch drops those that come before the receiver has run.
    fn start(socket: &Path, [from, to]: [&str; 2]) -> Self {
        let open = |name: &str| {
            let port = Port::open(&name.parse().expect("a name"), socket, Register::default());
            port.unwrap_or_else(|error| panic!("{name}: {error}"))
        };
        let (from, to) = (open(from), open(to));
        let end = Arc::new(AtomicBool::new(false));
        let ended = end.clone();
        let sender = std::thread::spawn(move || {
            let mut sent = 0;
            while !ended.load(Relaxed) {
                send(&from, &frame(2, 1, sent));
                from.tx()[0].sync().expect("its own rings");
                sent += 1;
                std::thread::sleep(Duration::from_millis(10));
            }
            // The port stays until its last frame has been taken.
            wait_until("the last frame to go", || {
                let ring = &from.tx()[0];
                ring.sync().expect("its own rings");
                ring.own() + 1 >= ring.ring().slots()
            });
            sent
        });
        let ended = end.clone();
        let receiver = std::thread::spawn(move || {
            let mut next = 0;
            loop {
                let frames = receive(&to, Duration::from_secs(1));
                if frames.is_empty() && ended.load(Relaxed) {
                    return next;
                }
                for frame in frames {
                    assert_eq!(number(&frame), next, "each frame, once, in order");
                    next += 1;
                }
            }
        });
        Self { end, sender, receiver }
    }

    /// Ends it, and checks that every frame has arrived.
    fn end(self) {
        self.end.store(true, Relaxed);
        let sent = self.sender.join().expect("all were taken");
        assert_eq!(self.receiver.join().expect("in order"), sent);
        assert!(sent > 500, "{sent} frames are no load");
    }
}

#[test]
fn the_package_is_installed_run_upgraded_and_removed() {
    let place = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder");
    let Packages { old, new, symbols } = Packages::make(place.path());
    // Debian's own checker finds no error in any file.
    let found = run(&["lintian", "--allow-root", "--fail-on", "error", text(&new), text(&symbols)]);
    assert!(!found.contains("E: "), "{found}");

    image(&new, place.path());

    let container = Container::boot(place.path());
    let before = files(&container);
    install(&container, &old);
    assert!(
        container.run("ringpass --version; man=$(ls /usr/share/man/man1 | wc -l); echo $man").contains("ringpass ")
    );
    container.run("bash -n /usr/share/bash-completion/completions/ringpass");
    assert_eq!(container.run("LD_PRELOAD=libringpass_netmap.so true 2>&1"), "", "the loader finds the library");

    // As an administrator does it: the TAP belongs to the machine, and stays.
    container.run("mkdir -p /etc/ringpass");
    std::fs::write(container.path("/etc/ringpass/lan.toml"), FILE).expect("a file");
    container.run(
        "ip tuntap add dev host mode tap user ringpass && ip address add 198.18.0.1/24 dev host && ip link set host up
         systemctl enable --now ringpass@lan",
    );
    assert_eq!(["ActiveState", "NotifyAccess"].map(|name| property(&container, name)), ["active", "main"]);
    let ports = container.run("ringpass ctl list");
    assert!(["card", "tap:host", "guest"].iter().all(|port| ports.contains(port)), "{ports}");
    let exposure = container.run("systemd-analyze security --no-pager ringpass@lan | tail -1");
    let level: f64 = exposure.split_whitespace().find_map(|word| word.parse().ok()).expect("a number");
    assert!(level < 2.0, "{exposure}");

    let guest: Guest = {
        let socket = container.path("/run/ringpass/guest");
        let builder: Builder = Guest::new()
            .vhost_user_nic("virtio-net-pci,rx_queue_size=1024,tx_queue_size=1024", &VhostUser::at(&socket));
        builder.boot()
    };
    serve(&guest);
    up(&guest, 0, 0);
    guest.run("ip address flush dev v0; ip address add 198.18.0.2/24 dev v0; ping -c 1 -w 60 198.18.0.1");

    // A file that asks for a change, and one that is wrong: the service goes on.
    let with_another = format!("{FILE}[[switch.port]]\naddress = \"null\"\nname = \"sink\"\n");
    std::fs::write(container.path("/etc/ringpass/lan.toml"), with_another).expect("a file");
    container.run("systemctl reload ringpass@lan");
    assert!(container.run("ringpass ctl list").contains("sink"));
    std::fs::write(container.path("/etc/ringpass/lan.toml"), "nonsense").expect("a file");
    container.try_run("systemctl reload ringpass@lan").expect_err("it is no file of a service");
    std::fs::write(container.path("/etc/ringpass/lan.toml"), FILE).expect("a file");
    container.run("systemctl reload ringpass@lan");

    // Programs on a switch, at a pipe and at a port that stays, whose frames pass through all that comes up to the upgrade.
    container.run(
        "systemctl enable --now ringpass-netmapd.socket 2>&1; ringpass vale new keeps; ringpass vale attach vale0:keeps",
    );
    let socket = container.path("/run/ringpass-netmap.sock");
    let loads = [["vale0:a", "vale0:b"], ["netmap:x{1", "netmap:x}1"], ["vale1:a", "vale1:b"]];
    let loads = loads.map(|ports| Load::start(&socket, ports));
    let served = || container.run("systemctl show --value --property MainPID ringpass-netmapd").trim().to_owned();
    for round in 0..5 {
        let before = served();
        // systemd starts nothing more often than five times in ten seconds.
        container.run("sleep 2; systemctl restart ringpass-netmapd");
        assert_ne!(served(), before);
        let journal = container.run("journalctl --no-pager -u ringpass-netmapd");
        assert!(container.run("ringpass vale").contains("keeps"), "round {round}: {journal}");
        // Nothing is kept that somebody uses.
        let kept = "systemctl show --value --property NFileDescriptorStore ringpass-netmapd";
        assert_eq!(container.run(kept).trim(), "0");
    }
    let journal = container.run("journalctl --no-pager -u ringpass-netmapd");
    assert_eq!(journal.matches("goes on with 6 programs").count(), 5, "{journal}");
    let exposure = container.run("systemd-analyze security --no-pager ringpass-netmapd | tail -1");
    let level: f64 = exposure.split_whitespace().find_map(|word| word.parse().ok()).expect("a number");
    assert!(level < 2.0, "{exposure}");
    let not_upgraded = served();

    // A thousand numbered pings, meanwhile a restart and an upgrade. QEMU takes the link down while nobody serves the guest, and drops what the guest
    // sends until it has noticed, a few frames each time. Nothing else is lost: the guest forgets its neighbour with the link and asks again, for as
    // long as a busy machine may need, and keeps its frames meanwhile. (With a deadline, `-w`, ping would end at the first error.)
    let main = || property(&container, "MainPID");
    let first = main();
    guest.run(
        "cd /proc/sys/net/ipv4/neigh/v0; echo 100 >ucast_solicit; echo 100 >mcast_solicit; echo 16777216 >unres_qlen_bytes",
    );
    let load = guest.spawn("ping -c 1000 -i 0.02 198.18.0.1");
    container.run("sleep 2; systemctl restart ringpass@lan; sleep 4");
    let second = main();
    assert_ne!(first, second);
    install(&container, &new);
    let third = main();
    assert_ne!(second, third, "an upgrade starts the new version");
    assert_ne!(served(), not_upgraded);
    loads.into_iter().for_each(Load::end);
    container.run("ringpass vale detach vale0:keeps && ringpass vale delete keeps");
    let journal = container.run("journalctl --no-pager -u ringpass-netmapd");
    assert!(!journal.contains("disconnected") && journal.matches("goes on with").count() == 6, "{journal}");
    assert_eq!(property(&container, "ActiveState"), "active");
    let said = guest.wait(&load, Duration::from_secs(320));
    let lost = (1..=1000).filter(|number| !said.text.contains(&format!("icmp_seq={number} "))).count();
    eprintln!("{lost} of 1000 frames were lost in QEMU");
    assert!(lost <= 20, "{}", said.text);
    assert_eq!(property(&container, "NRestarts"), "0");

    // tshark on this machine, with what the package has for it, looks at the guest.
    let unpacked = place.path().join("unpacked/usr");
    let tshark = tshark(
        &unpacked.join("lib/x86_64-linux-gnu/wireshark/extcap"),
        &container.path("/run/ringpass/control"),
        &unpacked.join("bin"),
        &["-i", "ringpass:guest", "-l", "-T", "fields", "-e", "icmp.type"],
    );
    wait_until("a frame of the guest in tshark", || {
        guest.run("ping -c 1 -w 60 198.18.0.1");
        tshark.lines().iter().any(|line| line.trim() == "8")
    });
    drop(tshark);

    // So does a browser.
    let browser = Browser::start(&container.enter_network().each_ref().map(String::as_str));
    browser.look(&Look { width: 900, dark: false });
    browser.open("http://127.0.0.1:8080/");
    browser.wait("the guest's rings", "return document.querySelectorAll('.ring svg[aria-label*=head]').length >= 4");
    let mac = guest.run("cat /sys/class/net/v0/address");
    let knows_guest = format!("return document.getElementById('stations').innerText.includes('{}')", mac.trim());
    browser.wait("the guest among the stations", &knows_guest);
    let load = guest.spawn("ping -c 50 -i 0.05 198.18.0.1");
    let rate = "const lanes = [...document.querySelectorAll('.lane')];
        return lanes.some(lane => lane.innerText.startsWith('guest Rx') && /[1-9]/.test(lane.innerText.split('\\n')[1].split('pps')[0]))";
    browser.wait("the guest's frames", rate);
    guest.wait(&load, Duration::from_secs(60));
    browser.picture(&Path::new(env!("CARGO_TARGET_TMPDIR")).join("page-service.png"));
    assert_eq!(browser.console(), <[String; 0]>::default());
    drop(browser);

    // One that is killed is started anew at once, and one that stands still when the watchdog has seen no sign of life.
    let comes_back = |how: &str| {
        let before = main();
        container.run(&format!("kill -{how} {before}"));
        wait_until("the service to come back", || {
            property(&container, "ActiveState") == "active" && ![&before[..], "0"].contains(&&main()[..])
        });
        guest.run("ping -c 3 -w 60 198.18.0.1");
    };
    comes_back("KILL");
    container.run(
        "mkdir -p /run/systemd/system/ringpass@lan.service.d
         printf '[Service]\nWatchdogSec=2\n' >/run/systemd/system/ringpass@lan.service.d/watchdog.conf
         systemctl daemon-reload && systemctl restart ringpass@lan",
    );
    comes_back("STOP");
    assert!(container.run("journalctl --no-pager -u ringpass@lan").contains("Watchdog timeout"));

    // systemd listens: the guest, which connects again, starts the service, and so does who looks at it.
    container.run(
        "cp /usr/share/doc/ringpass/examples/ringpass@lan.socket /etc/systemd/system/
         systemctl daemon-reload; systemctl stop ringpass@lan; systemctl enable --now ringpass@lan.socket 2>&1",
    );
    wait_until("the guest to start the service", || property(&container, "ActiveState") == "active");
    guest.run("ping -c 3 -w 60 198.18.0.1");
    container.run("systemctl stop ringpass@lan; ringpass ctl list");
    let journal = container.run("journalctl --no-pager -u ringpass@lan");
    assert!(!journal.contains("nothing listens there"), "{journal}");
    let metrics =
        container.spawn_in_network(&["curl", "-sS", "http://127.0.0.1:9184/metrics"]).wait(Duration::from_secs(20));
    assert!(
        metrics.lines.iter().any(|line| line.starts_with("ringpass_port_received_packets_total{port=\"guest\"")),
        "{metrics:?}"
    );
    container.run(
        "systemctl disable --now ringpass@lan.socket ringpass@lan 2>&1; rm /etc/systemd/system/ringpass@lan.socket
         systemctl daemon-reload; systemctl start ringpass@lan || { journalctl --no-pager -n 20 -u ringpass@lan; exit 1; }",
    );

    // Removed while it runs: it ends, and leaves the configuration alone.
    container.run("dpkg --remove ringpass 2>&1");
    container.try_run("pidof ringpass").expect_err("it has ended");
    container.run("test -s /etc/ringpass/lan.toml && dpkg --purge ringpass 2>&1");
    let left: Vec<_> = files(&container).difference(&before).cloned().collect();
    assert_eq!(left, ["/etc/ringpass", "/etc/ringpass/lan.toml"]);
    container.run("test ! -e /run/ringpass");
}
