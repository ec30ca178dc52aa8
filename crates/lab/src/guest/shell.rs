//! Interactive guests: a shell on this terminal.

use std::process::{Command, ExitStatus};
use std::time::Duration;

use super::qemu::Console;
use super::{Builder, Prepared};

impl Builder {
    /// Starts the guest with a shell on this terminal, which first runs the script `greeting`, and waits until
    /// QEMU exits.
    pub fn shell(self, greeting: &str) -> std::io::Result<ExitStatus> {
        let greeting = match terminal_size() {
            Some((rows, columns)) => format!("stty rows {rows} columns {columns}\n{greeting}"),
            None => greeting.to_owned(),
        };
        let Prepared { mut command, folder: _folder, namespace, taps } =
            self.file("greeting", greeting.as_bytes()).prepare(Console::Terminal);
        let mut qemu = command.spawn()?;
        if let Some(namespace) = namespace {
            let there = |name: &str| {
                let show = Command::new("ip").args(["-n", &namespace.0, "link", "show", name]).output();
                show.is_ok_and(|output| output.status.success())
            };
            for tap in taps {
                while !there(&tap.name) {
                    // QEMU creates its TAPs when it starts, and prints an error itself if it cannot.
                    if let Some(status) = qemu.try_wait()? {
                        return Ok(status);
                    }
                    std::thread::sleep(Duration::from_millis(20));
                }
                tap.move_to_namespace(&namespace);
            }
        }
        qemu.wait()
    }
}

/// Returns the terminal's rows and columns, which a serial console cannot report.
fn terminal_size() -> Option<(u16, u16)> {
    let output = Command::new("stty").arg("size").stdin(std::process::Stdio::inherit()).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    let (rows, columns) = text.trim().split_once(' ')?;
    Some((rows.parse().ok()?, columns.parse().ok()?)).filter(|&(rows, columns)| rows > 0 && columns > 0)
}
