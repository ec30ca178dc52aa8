//! The commands of README.md and of the book's first chapters, as written there, in a minimal Debian 12 and as an
//! ordinary user who may use sudo: the installation of packages, the first build, `make install`, the tour, a guest.
//!
//! Two things are provided, because this test has no network: Rust is the toolchain that built this test, with
//! the crates that it has downloaded, in the place where rustup would put them; and apt has the pages'
//! packages in its cache, and pip the build tool in a folder (`scripts/lab`). And release builds are optimised less, which takes half the time and changes
//! nothing that is tested here.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::common::terminal::Terminal;
use crate::common::{run, text};

const TREE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

/// Time limit for a line. The longest build takes one to two minutes on two idle cores.
const LIMIT: Duration = Duration::from_secs(1800);

/// Marker printed after the output of a line, before its exit status.
const END: &str = "the end: ";

/// Last output of a program before its work begins.
const READY: &str = "sandbox: user";

/// Returns the command lines in the indented code blocks of a section of a page, with their comments.
fn commands(page: &str, section: &str) -> Vec<String> {
    let page = std::fs::read_to_string(Path::new(TREE).join(page)).expect(page);
    let (_, text) = page.split_once(&format!("\n## {section}\n")).unwrap_or_else(|| panic!("no section {section}"));
    let text = text.split_once("\n## ").map_or(text, |(text, _)| text);
    // Fenced blocks have code, which may be indented too.
    let text: String = text.split("\n```").step_by(2).collect();
    let code = text.lines().filter_map(|line| line.strip_prefix("    "));
    let lines: Vec<_> = code.filter(|line| !line.starts_with('#')).map(str::to_owned).collect();
    assert!(!lines.is_empty(), "no commands in section {section}");
    lines
}

/// A minimal Debian in its own mount, process and network namespaces, which all end with its first process.
struct Bare {
    shell: Terminal,
    folder: Option<tempfile::TempDir>,
}

/// Creates the rest of the system around the unpacked files in `$1`, and logs in. `$2` is this tree, `$3` Rust,
/// `$4` the crates that Cargo has downloaded.
const LOG_IN: &str = r#"
set -e
root=$1 home=$1/home/newcomer
hostname bare
ip link set lo up
mount --bind "$root" "$root"
mount -o remount,bind,suid,exec,dev "$root"
mount -t proc proc "$root/proc"
mount -t sysfs sys "$root/sys"
for folder in run tmp dev; do mount -t tmpfs -o mode=1777 none "$root/$folder"; done
mkdir "$root/dev/net" "$root/dev/pts" "$root/dev/shm"
for device in null zero full random urandom tty net/tun; do
    : >"$root/dev/$device"
    mount --bind "/dev/$device" "$root/dev/$device"
done
mount -t devpts -o newinstance,ptmxmode=666 pts "$root/dev/pts"
ln -s pts/ptmx "$root/dev/ptmx"
ln -s /proc/self/fd "$root/dev/fd"
echo '127.0.0.1 localhost bare' >"$root/etc/hosts"
chroot "$root" useradd --create-home --shell /bin/bash newcomer
echo 'newcomer ALL=(ALL) NOPASSWD: ALL' >"$root/etc/sudoers.d/newcomer"

mkdir -p "$home/.cargo/bin" "$home/.cargo/registry" "$home/ringpass/lab" "$root/opt/rust"
mount --bind "$3" "$root/opt/rust"
for program in "$3"/bin/*; do ln -s "/opt/rust/bin/${program##*/}" "$home/.cargo/bin"; done
mount --bind "$4" "$home/.cargo/registry"
mount -o remount,bind,ro "$home/.cargo/registry"
printf '[net]\noffline = true\n[profile.release]\nopt-level = 1\ncodegen-units = 16\n' >"$home/.cargo/config.toml"
echo 'PATH=$HOME/.cargo/bin:$PATH' >>"$home/.profile"
tar -c -C "$2" --exclude=./target --exclude='./lab*' --exclude=./.git . | tar -x -C "$home/ringpass"
chroot "$root" chown -hR newcomer: /home/newcomer/.cargo/bin /home/newcomer/.cargo/config.toml /home/newcomer/ringpass
chown --reference="$home" "$home/.cargo"
mount --bind "$2/lab" "$home/ringpass/lab"
mount -o remount,bind,ro "$home/ringpass/lab"

printf '[global]\nno-index = true\nfind-links = /home/newcomer/ringpass/lab/wheels\n' >"$root/etc/pip.conf"

cd "$root"
pivot_root . mnt
umount -l /mnt
exec su -l newcomer
"#;

impl Bare {
    fn new() -> Self {
        assert!(ringpass_lab::is_made(), "this test needs what `make lab` makes; run it first");
        let lab = Path::new(TREE).join("lab");
        // In the target folder, which has room for another one; /tmp may be memory.
        let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder");
        let root = folder.path().join("root");
        std::fs::create_dir(&root).expect("a folder");
        run(&["tar", "--zstd", "--numeric-owner", "-C", text(&root), "-xpf", text(&lab.join("debian.tar.zst"))]);
        let mut command = Command::new("unshare");
        command.args(["--mount", "--net", "--uts", "--ipc", "--pid", "--fork", "--kill-child", "--"]);
        command.args(["sh", "-c", LOG_IN, "sh"]).args([&root, Path::new(TREE), &rust(), &registry()]);
        let mut bare = Self { shell: Terminal::start(&mut command), folder: Some(folder) };
        bare.line("exec 2>&1; cd ringpass; umask 022");
        assert_eq!(bare.line("id -un; type cargo").lines().next(), Some("newcomer"));
        bare
    }

    /// Runs a line of the shell to its end; it must succeed. Returns the output.
    fn line(&mut self, line: &str) -> String {
        eprintln!("$ {line}");
        self.shell.keys(&format!("{line}\necho \"{END}$?\"\n"));
        let text = self.shell.expect_within(LIMIT, END);
        let status = self.shell.expect("\n");
        eprint!("{text}");
        assert_eq!(status, "0\n", "{line}\n{text}");
        text.strip_suffix(END).expect("the end of what was waited for").to_owned()
    }
}

impl Drop for Bare {
    fn drop(&mut self) {
        self.shell.kill();
        let folder = self.folder.take().expect("it is there up to now").keep();
        // The last of its processes may end a moment after the first one, and still write.
        let removed = (0..1000).any(|_| {
            std::thread::sleep(Duration::from_millis(20));
            std::fs::remove_dir_all(&folder).is_ok()
        });
        if !removed {
            eprintln!("{} stays behind", folder.display());
        }
    }
}

/// Returns the toolchain of the Cargo that runs this test.
fn rust() -> PathBuf {
    let sysroot = run(&["rustc", "--print", "sysroot"]);
    PathBuf::from(sysroot.trim())
}

/// Returns the folder of Cargo's downloads.
fn registry() -> PathBuf {
    let home = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = home.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cargo")));
    let registry = home.expect("Cargo's home").join("registry");
    assert!(registry.is_dir(), "{}: the crates that Cargo has downloaded are not there", registry.display());
    registry
}

#[test]
fn a_newcomer_does_what_the_readme_says() {
    let mut bare = Bare::new();

    for line in commands("README.md", "Install") {
        bare.line(&line);
    }
    // The loader finds the library by its name; otherwise it prints an error and runs the program nevertheless.
    assert_eq!(bare.line("LD_PRELOAD=libringpass_netmap.so true"), "");
    // What is installed has no symbols; they lie apart.
    assert!(bare.line("nm /usr/local/bin/ringpass").contains("no symbols"));
    assert!(bare.line("nm /usr/lib/debug/usr/local/bin/ringpass.debug | head -3").contains(' '));

    for line in commands("README.md", "As a service") {
        let printed = bare.line(&line);
        if line.contains(" & ") && !printed.contains(READY) {
            bare.shell.expect(READY);
        } else if line.contains(" ctl list") || line.contains(" top ") {
            assert!(["card", "tap:host", "tap:c"].iter().all(|port| printed.contains(port)), "{printed}");
        } else if line.contains(" apply ") {
            assert!(printed.contains("- tap:c"), "{printed}");
        } else if line.starts_with("wait") {
            assert!(printed.contains("in all"), "{printed}");
        }
    }

    for line in commands("docs/getting-started.md", "A tour in five minutes") {
        if line.starts_with("exit") {
            bare.shell.keys("exit\n");
            continue;
        }
        let printed = bare.line(&line);
        if line.contains(" & ") && !printed.contains(READY) {
            bare.shell.expect(READY);
        }
        if line.starts_with("ping ") {
            assert!(printed.contains(" 3 received"), "{printed}");
        } else if line.starts_with("ringpass ping ") {
            assert!(printed.contains(" bytes back"), "{printed}");
        } else if line.starts_with("ringpass dump ") {
            assert!(printed.contains("UDP"), "{printed}");
        }
    }

    let mut printed = String::new();
    for line in commands("docs/applications.md", "C") {
        printed = bare.line(&line);
    }
    assert!(printed.contains(r#""packets": 1000"#), "{printed}");

    for line in commands("docs/applications.md", "Python") {
        bare.line(&line);
    }
    let received =
        "import ringpass; print(sum(1 for _ in ringpass.open('pcap:made.pcap')[0].receive(256, wait=9)), 'received')";
    assert!(bare.line(&format!("python -c \"{received}\"; deactivate")).contains("256 received"));

    bare.line(
        "test -x /usr/local/bin/ringpass && sudo make uninstall && ! find /usr/local /usr/lib/debug -name '*ringpass*' | grep .",
    );
    bare.line("make install DESTDIR=$HOME/package PREFIX=/usr && test -f ~/package/usr/lib/libringpass_netmap.so");
    bare.line("make uninstall DESTDIR=$HOME/package PREFIX=/usr && ! find ~/package -type f | grep .");

    let lines = commands("docs/guests.md", "Try it");
    assert!(lines[0].starts_with("make lab-shell "), "{lines:?}");
    // Bash reads the whole script first, so that later input goes to the guest.
    bare.shell.keys(&format!("{{ {}\n}}; echo \"{END}$?\"\n", lines[0]));
    bare.shell.expect_within(LIMIT, "Try:");
    bare.shell.expect("guest# ");
    for line in &lines[1..] {
        // `run` appends a command to the line, which a comment would hide.
        let line = line.split("  #").next().unwrap().trim_end();
        let printed = bare.shell.run(line);
        eprintln!("guest# {line}\n{printed}");
        if line.starts_with("ringpass dump ") {
            assert!(printed.contains("ICMP"), "{printed}");
        }
    }
    bare.shell.keys("exit\n");
    bare.shell.expect("The guest ends.");
    bare.shell.expect(&format!("{END}0\n"));
}
