//! Guests: Linux kernels under QEMU that run commands for a test.

use std::cell::Cell;
use std::fmt::Write as _;
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use crate::host::Namespace;
use crate::initramfs::Archive;

mod migration;
mod monitor;
mod nic;
mod qemu;
mod shell;

pub use migration::Migrated;
pub use nic::{Tap, VhostUser, nic_address, nic_mac};
pub use qemu::{Iommu, Machine, Qemu};

use nic::Nic;
use qemu::Console;

/// Folder where `make lab` puts what guests need.
pub(crate) const LAB: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../lab");

/// Longest time for a guest to boot; about three seconds are usual.
const BOOT_TIMEOUT: Duration = Duration::from_secs(180);

/// Longest time for a command of [`Guest::run`], also on a busy machine.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(120);

/// Builder of a guest.
pub struct Builder {
    memory: u32,
    cpus: u32,
    machine: Machine,
    iommu: Iommu,
    devices: Vec<String>,
    cards: u32,
    nics: Vec<Nic>,
    qemu: Qemu,
    arguments: Vec<String>,
    files: Archive,
    dpdk: bool,
}

impl Builder {
    /// Sets the guest's memory in MiB; the default is 256.
    pub fn memory(mut self, mib: u32) -> Self {
        self.memory = mib;
        self
    }

    /// Sets the number of virtual processors; the default is one.
    pub fn cpus(mut self, cpus: u32) -> Self {
        self.cpus = cpus;
        self
    }

    /// Chooses the QEMU version; the default is the newest.
    pub fn qemu(mut self, qemu: Qemu) -> Self {
        self.qemu = qemu;
        self
    }

    /// Adds arguments to QEMU's command line.
    pub fn arguments(mut self, arguments: &[&str]) -> Self {
        self.arguments.extend(arguments.iter().map(|&argument| argument.to_owned()));
        self
    }

    /// Sets QEMU's machine type; the default is [`Machine::Q35`].
    pub fn machine(mut self, machine: Machine) -> Self {
        self.machine = machine;
        self
    }

    /// Sets the IOMMU; the default is none.
    pub fn iommu(mut self, iommu: Iommu) -> Self {
        self.iommu = iommu;
        self
    }

    /// Adds one of QEMU's own devices, in the syntax of `-device`.
    pub fn device(mut self, device: &str) -> Self {
        self.devices.push(device.to_owned());
        self
    }

    /// Adds a device that listens on a vfio-user socket. The first is at PCI address `0000:00:10.0`, the next
    /// at `0000:00:11.0`.
    pub fn card(mut self, socket: &Path) -> Self {
        let socket = socket.to_str().expect("a path in UTF-8");
        let slot = 0x10 + self.cards;
        self.cards += 1;
        self.device(&format!(
            r#"{{"driver":"vfio-user-pci","addr":"{slot:x}","socket":{{"path":"{socket}","type":"unix"}}}}"#
        ))
    }

    /// Adds a file to the guest's folder `/host`.
    pub fn file(mut self, name: &str, content: &[u8]) -> Self {
        self.files.file(&format!("host/{name}"), content);
        self
    }

    /// Adds a program of the host, which the guest runs by its file name. The host's shared libraries come with
    /// it, because the guest's may be older. Debug information is stripped, as it would take up most of the
    /// guest's memory.
    pub fn program(mut self, path: &Path) -> Self {
        let name = path.file_name().and_then(|name| name.to_str()).expect("a program's path");
        let mut loader = None;
        for line in crate::run(&["ldd", path.to_str().expect("a path in UTF-8")]).lines() {
            let mut words = line.split_whitespace().filter(|word| word.starts_with('/'));
            let Some(library) = words.next() else { continue };
            let base = library.rsplit('/').next().unwrap();
            if !line.contains("=>") {
                loader = Some(base.to_owned());
            }
            self = self.file(&format!("lib/{base}"), &read(Path::new(library)));
        }
        let loader = loader.expect("a program that needs a loader");
        let wrapper = format!("#!/bin/sh\nexec /host/lib/{loader} --library-path /host/lib /host/{name} \"$@\"\n");
        self.files.file(&format!("usr/bin/{name}"), wrapper.as_bytes());
        let stripped = tempfile::NamedTempFile::new().expect("a temporary file");
        let to = stripped.path().to_str().expect("a path in UTF-8");
        crate::run(&["strip", "--strip-debug", "-o", to, path.to_str().expect("a path in UTF-8")]);
        self.file(name, &read(stripped.path()))
    }

    /// Adds DPDK's `testpmd` with the drivers for ixgbe and virtio.
    pub fn dpdk(mut self) -> Self {
        self.dpdk = true;
        self
    }

    /// Starts the guest and waits until it takes commands.
    pub fn boot(self) -> Guest {
        let [guest] = Self::boot_all([self]);
        guest
    }

    /// Starts several guests at once and waits until all of them take commands.
    pub fn boot_all<const N: usize>(builders: [Self; N]) -> [Guest; N] {
        let start = Instant::now();
        // QEMU is started on this thread: with `--pdeathsig` it is killed when the thread that started it ends.
        let guests = builders.map(Self::start);
        guests.map(|(guest, taps)| {
            guest.answer("its boot", BOOT_TIMEOUT);
            for tap in taps {
                tap.move_to_namespace(guest.namespace.as_ref().expect("a namespace where there are TAPs"));
            }
            eprintln!("guest up after {:.1} s", start.elapsed().as_secs_f64());
            guest
        })
    }

    /// Starts the guest, which must have no TAPs, and does not wait for it. Scripts of [`Guest::send_script`]
    /// run once it is up.
    pub fn launch(self) -> Guest {
        let (guest, taps) = self.start();
        assert!(taps.is_empty(), "TAPs are there when the guest is up");
        guest
    }

    /// Starts QEMU.
    fn start(self) -> (Guest, Vec<Tap>) {
        let Prepared { mut command, folder, namespace, taps } = self.prepare(Console::Agent);
        let errors = File::create(folder.path().join("errors")).expect("a file for QEMU's errors");
        let mut qemu = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(errors)
            .spawn()
            .expect("setpriv (package util-linux) to start QEMU with");
        let agent = qemu.stdin.take().unwrap();
        let answers = answers(qemu.stdout.take().unwrap());
        (Guest { qemu, agent, answers, folder, scripts: Cell::new(0), namespace }, taps)
    }

    /// Writes the files that QEMU needs and builds the command that starts it.
    fn prepare(mut self, console: Console) -> Prepared {
        let lab = Path::new(LAB);
        assert!(crate::is_made(), "guests need what `make lab` makes; run it first");
        let folder = tempfile::tempdir().expect("a temporary folder");
        let init: &[u8] = match console {
            Console::Agent => include_bytes!("init.sh"),
            Console::Terminal => include_bytes!("shell.sh"),
        };
        self.files.file("init", init);
        let taps: Vec<Tap> = self.nics.iter().filter_map(Nic::tap).cloned().collect();
        // QEMU creates its TAPs in a namespace of their own.
        let namespace = (!taps.is_empty()).then(Namespace::new);
        let command = self.command(lab, folder.path(), namespace.as_ref(), console);
        let mut initrd = read(&lab.join("base.cpio"));
        if self.dpdk {
            initrd.extend(read(&lab.join("dpdk.cpio")));
        }
        initrd.extend(self.files.finish());
        std::fs::write(folder.path().join("initrd"), initrd).expect("room for the guest's files");
        Prepared { command, folder, namespace, taps }
    }
}

/// A guest that is ready to be started.
struct Prepared {
    command: Command,
    folder: tempfile::TempDir,
    /// Namespace in which QEMU runs, if it has TAPs.
    namespace: Option<Namespace>,
    taps: Vec<Tap>,
}

fn read(path: &Path) -> Vec<u8> {
    std::fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Result of a command in a guest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Output {
    /// Exit status; 128 plus the signal's number if a signal ended the command.
    pub status: u32,
    /// Standard output and standard error.
    pub text: String,
}

/// Starts a thread that reads the guest's answers until the guest ends.
fn answers(from: ChildStdout) -> Receiver<(u32, Output)> {
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        let mut from = BufReader::new(from);
        loop {
            let mut line = String::new();
            from.read_line(&mut line).ok()?;
            let mut numbers = line.split_whitespace().map(|word| word.parse::<u32>().ok());
            let number = numbers.next()??;
            let status = numbers.next()??;
            let length = numbers.next()??;
            let mut text = vec![0; length as usize];
            from.read_exact(&mut text).ok()?;
            let text = String::from_utf8_lossy(&text).into_owned();
            sender.send((number, Output { status, text })).ok()?;
        }
        #[expect(unreachable_code, reason = "names the type")]
        Some(())
    });
    receiver
}

/// A command that runs in a guest in the background.
#[must_use]
pub struct Job(u32);

/// A running guest, killed when dropped. If the test fails, the end of its console is printed.
pub struct Guest {
    qemu: Child,
    agent: ChildStdin,
    answers: Receiver<(u32, Output)>,
    folder: tempfile::TempDir,
    /// Number of scripts sent so far, which is also the number of the last one.
    scripts: Cell<u32>,
    /// Namespace in which QEMU runs, if it has TAPs.
    namespace: Option<Namespace>,
}

impl Guest {
    /// Returns a builder for a guest with one processor, 256 MiB and no devices.
    #[expect(clippy::new_ret_no_self, reason = "a guest is built in steps")]
    pub fn new() -> Builder {
        let mut files = Archive::default();
        files.folder("host");
        files.folder("host/lib");
        files.file("setup", include_bytes!("setup.sh"));
        Builder {
            memory: 256,
            cpus: 1,
            machine: Machine::Q35,
            iommu: Iommu::Off,
            devices: Vec::new(),
            cards: 0,
            nics: Vec::new(),
            qemu: Qemu::Newest,
            arguments: Vec::new(),
            files,
            dpdk: false,
        }
    }

    /// Runs a shell script in the guest and returns its status and output. Panics if it takes longer than
    /// `limit`.
    pub fn output(&self, script: &str, limit: Duration) -> Output {
        self.send_script(script);
        self.answer(script, limit)
    }

    /// Sends a shell script to the guest and does not wait for its end.
    pub fn send_script(&self, script: &str) {
        let number = self.scripts.get() + 1;
        self.scripts.set(number);
        let sent = (&self.agent).write_all(format!("{number} {}\n{script}", script.len()).as_bytes());
        sent.and_then(|()| (&self.agent).flush()).unwrap_or_else(|error| panic!("the guest is gone: {error}"));
    }

    /// Runs a shell script that must succeed within two minutes, and returns what it printed.
    pub fn run(&self, script: &str) -> String {
        self.run_within(COMMAND_TIMEOUT, script)
    }

    /// Runs a shell script that must succeed within `limit`, and returns what it printed.
    pub fn run_within(&self, limit: Duration, script: &str) -> String {
        let output = self.output(script, limit);
        assert_eq!(output.status, 0, "in the guest: {script}\n{}", output.text);
        output.text
    }

    /// Starts a shell script in the background.
    pub fn spawn(&self, script: &str) -> Job {
        let job = self.scripts.get();
        self.run(&format!(
            "cat >/run/job{job} <<'end of the job'\n{script}\nend of the job\n\
             : >/run/output{job}; (sh /run/job{job}; echo $? >/run/status{job}) >/run/output{job} 2>&1 &"
        ));
        Job(job)
    }

    /// Returns the output of a job so far.
    pub fn printed(&self, job: &Job) -> String {
        self.run(&format!("cat /run/output{}", job.0))
    }

    /// Returns whether a job is still running.
    pub fn running(&self, job: &Job) -> bool {
        self.output(&format!("cat /run/status{}", job.0), COMMAND_TIMEOUT).status != 0
    }

    /// Waits until a job ends. Panics after `limit`.
    pub fn wait(&self, job: &Job, limit: Duration) -> Output {
        let start = Instant::now();
        loop {
            let status = self.output(&format!("cat /run/status{}", job.0), COMMAND_TIMEOUT);
            if let Ok(status) = status.text.trim().parse() {
                return Output { status, text: self.printed(job) };
            }
            assert!(start.elapsed() < limit, "still running in the guest after {limit:?}:\n{}", self.printed(job));
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Returns the text of the serial console since the guest's start.
    pub fn console(&self) -> String {
        String::from_utf8_lossy(&read(&self.folder.path().join("console"))).replace('\r', "")
    }

    /// Returns the process ID of QEMU.
    pub fn id(&self) -> u32 {
        self.qemu.id()
    }

    fn answer(&self, to: &str, limit: Duration) -> Output {
        let end = Instant::now() + limit;
        loop {
            match self.answers.recv_timeout(end.saturating_duration_since(Instant::now())) {
                Ok((number, output)) if number == self.scripts.get() => return output,
                Ok(_) => {} // The late answer to a script that an earlier caller stopped waiting for.
                Err(RecvTimeoutError::Timeout) => panic!("no answer from the guest within {limit:?} to: {to}"),
                Err(RecvTimeoutError::Disconnected) => panic!("the guest ended before it answered to: {to}"),
            }
        }
    }

    /// Returns the last lines of the console and of QEMU's errors.
    fn last_words(&self) -> String {
        let mut text = String::new();
        for (what, of) in [("console", "console"), ("QEMU's errors", "errors")] {
            let content = std::fs::read(self.folder.path().join(of)).unwrap_or_default();
            let content = String::from_utf8_lossy(&content).replace('\r', "");
            let lines: Vec<_> = content.lines().collect();
            let _ = writeln!(text, "---- the guest's {what}, last lines:");
            for line in &lines[lines.len().saturating_sub(60)..] {
                let _ = writeln!(text, "{line}");
            }
        }
        text
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        let _ = self.qemu.kill();
        let _ = self.qemu.wait();
        if std::thread::panicking() {
            eprintln!("{}", self.last_words());
        }
    }
}
