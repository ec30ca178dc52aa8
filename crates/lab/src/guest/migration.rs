//! Live migration of guests between two QEMUs of this machine.

use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::{Builder, Guest};

/// Longest time for a migration.
const MIGRATION_TIMEOUT: Duration = Duration::from_secs(120);

/// A guest that has migrated.
pub struct Migrated {
    /// The guest, in its new QEMU.
    pub guest: Guest,
    /// Time for which it stood still, as QEMU reckons it.
    pub down: Duration,
    /// Time of the whole migration.
    pub total: Duration,
}

impl Guest {
    /// Migrates the guest into another QEMU, with the same devices, while it runs. Its jobs go on. Panics if QEMU refuses or fails.
    pub fn migrate(self, to: Builder) -> Migrated {
        let place = self.folder.path().join("migration");
        let uri = format!("unix:{}", place.to_str().expect("a path in UTF-8"));
        let guest = to.arguments(&["-incoming", "defer"]).launch();
        let start = Instant::now();
        let pause = || {
            assert!(start.elapsed() < MIGRATION_TIMEOUT, "a migration of more than {MIGRATION_TIMEOUT:?}");
            std::thread::sleep(Duration::from_millis(10));
        };
        while UnixStream::connect(guest.folder.path().join("monitor")).is_err() {
            pause();
        }
        guest.qmp("migrate-incoming", &json!({ "uri": uri }));
        self.qmp("migrate", &json!({ "uri": uri }));
        loop {
            let told = self.qmp("query-migrate", &json!({}));
            let time = |name: &str| Duration::from_millis(told[name].as_u64().unwrap_or_default());
            match told["status"].as_str() {
                Some("completed") => {
                    guest.scripts.set(self.scripts.get());
                    return Migrated { guest, down: time("downtime"), total: time("total-time") };
                }
                Some("failed" | "cancelled") => panic!("QEMU: {told}"),
                _ => pause(),
            }
        }
    }

    /// Begins a migration to a program, which gets the guest's state as its input.
    pub fn begin_migration(&self, command: &str) {
        self.qmp("migrate", &json!({ "uri": format!("exec:{command}") }));
    }

    /// Begins a migration to nowhere, which fails after a second, and waits for its end. The guest goes on here.
    pub fn migrate_in_vain(&self) {
        self.begin_migration("sleep 1; false");
        let start = Instant::now();
        let status = || self.qmp("query-migrate", &json!({}))["status"].clone();
        while ![json!("failed"), json!("cancelled"), Value::Null].contains(&status()) {
            assert!(start.elapsed() < MIGRATION_TIMEOUT, "a migration that does not fail: {}", status());
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}
