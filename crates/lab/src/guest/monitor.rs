//! Control of a running guest from outside: QEMU's monitor and reboots.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use serde_json::{Value, json};

use super::{BOOT_TIMEOUT, Guest};

impl Guest {
    /// Sends a command such as `info network` to QEMU's monitor and returns its output.
    pub fn monitor(&self, command: &str) -> String {
        let answer = self.qmp("human-monitor-command", &json!({ "command-line": command }));
        answer.as_str().unwrap_or_default().replace('\r', "")
    }

    /// Reboots the guest and waits until it takes commands. All state inside the guest is lost.
    pub fn reboot(&self) {
        // By default QEMU exits on a reboot (`-no-reboot`).
        self.qmp("set-action", &json!({ "reboot": "reset" }));
        self.scripts.set(0);
        let script = "reboot -f";
        writeln!(&self.agent, "1 {}\n{script}", script.len()).expect("the guest is there");
        self.answer("its next boot", BOOT_TIMEOUT);
    }

    pub(super) fn qmp(&self, command: &str, arguments: &Value) -> Value {
        let socket = UnixStream::connect(self.folder.path().join("monitor")).expect("QEMU's monitor");
        socket.set_read_timeout(Some(Duration::from_secs(60))).expect("a limit");
        let mut answers = BufReader::new(&socket).lines();
        let mut ask = |message: Value| -> Value {
            writeln!(&socket, "{message}").expect("QEMU's monitor listens");
            loop {
                let line = answers.next().expect("QEMU is there").expect("an answer of QEMU's monitor within a minute");
                let answer: Value = serde_json::from_str(&line).expect("JSON");
                assert!(answer.get("error").is_none(), "QEMU's monitor: {message}: {answer}");
                // Events and the greeting can arrive before the answer.
                if let Some(value) = answer.get("return") {
                    return value.clone();
                }
            }
        };
        ask(json!({ "execute": "qmp_capabilities" }));
        ask(json!({ "execute": command, "arguments": arguments }))
    }
}
