//! Starts a guest with a shell on this terminal; run by `scripts/lab-shell` with the program's path and `hosts`
//! or `user-networks`.

use std::path::Path;
use std::process::ExitCode;

use ringpass_lab::{Uplink, shell};

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().collect();
    let uplink = match arguments.get(2).map(String::as_str) {
        Some("hosts") => Uplink::Hosts,
        Some("user-networks") => Uplink::UserNetworks,
        _ => {
            eprintln!("lab-shell: PROGRAM hosts|user-networks; start it by make lab-shell");
            return ExitCode::FAILURE;
        }
    };
    match shell(Path::new(&arguments[1]), uplink) {
        Ok(status) if status.success() => ExitCode::SUCCESS,
        Ok(status) => {
            eprintln!("lab-shell: QEMU ended with {status}");
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("lab-shell: setpriv (package util-linux), which starts QEMU: {error}");
            ExitCode::FAILURE
        }
    }
}
