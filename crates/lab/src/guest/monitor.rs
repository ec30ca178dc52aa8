//! What is done to a running guest from outside.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use serde_json::{Value, json};

use super::{BOOT, Guest};

impl Guest {
    /// Gives QEMU's monitor a command, as `info network`, and returns what it prints.
    pub fn monitor(&self, command: &str) -> String {
        let answer = self.qmp("human-monitor-command", &json!({ "command-line": command }));
        answer.as_str().unwrap_or_default().replace('\r', "")
    }

    /// Has the guest boot anew, and waits until it takes commands. What was set up inside is gone.
    pub fn reboot(&self) {
        // By default QEMU ends then.
        self.qmp("set-action", &json!({ "reboot": "reset" }));
        self.scripts.set(0);
        let script = "reboot -f";
        writeln!(&self.agent, "1 {}\n{script}", script.len()).expect("the guest is there");
        self.answer("its next boot", BOOT);
    }

    fn qmp(&self, command: &str, arguments: &Value) -> Value {
        let socket = UnixStream::connect(self.folder.path().join("monitor")).expect("QEMU's monitor");
        socket.set_read_timeout(Some(Duration::from_secs(60))).expect("a limit");
        let mut answers = BufReader::new(&socket).lines();
        let mut ask = |message: Value| -> Value {
            writeln!(&socket, "{message}").expect("QEMU's monitor listens");
            loop {
                let line = answers.next().expect("QEMU is there").expect("an answer of QEMU's monitor within a minute");
                let answer: Value = serde_json::from_str(&line).expect("JSON");
                assert!(answer.get("error").is_none(), "QEMU's monitor: {message}: {answer}");
                // Events and the greeting come between.
                if let Some(value) = answer.get("return") {
                    return value.clone();
                }
            }
        };
        ask(json!({ "execute": "qmp_capabilities" }));
        ask(json!({ "execute": command, "arguments": arguments }))
    }
}
