//! What `scripts/lab-shell` starts: PROGRAM, and `hosts` or `user-networks`.

use std::path::Path;
use std::process::ExitCode;

use ringpass_lab::{Behind, shell};

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().collect();
    let behind = match arguments.get(2).map(String::as_str) {
        Some("hosts") => Behind::Hosts,
        Some("user-networks") => Behind::UserNetworks,
        _ => {
            eprintln!("lab-shell: PROGRAM hosts|user-networks; start it by make lab-shell");
            return ExitCode::FAILURE;
        }
    };
    match shell(Path::new(&arguments[1]), behind) {
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
