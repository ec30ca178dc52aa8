//! Addresses of both ends of vhost-user: `vhost:PATH[,OPTION…]`, `virtio-user:PATH[,OPTION…]`.

use std::path::PathBuf;

use ringpass_ipc::SocketAccess;

use super::number;
use crate::MacAddress;

/// Options of `vhost`.
#[derive(Clone, Debug, PartialEq)]
pub struct VhostConfig {
    /// Path of the socket.
    pub path: PathBuf,
    /// Which end creates the socket.
    pub role: Role,
    /// Mode and owners of the socket, if this end creates it.
    pub access: SocketAccess,
    /// Number of queue pairs; `None` for that of the program's other ports.
    pub queues: Option<usize>,
    /// Features to offer in addition to the default ones or to leave out.
    pub features: Option<String>,
}

/// Options of `virtio-user`.
#[derive(Clone, Debug, PartialEq)]
pub struct VirtioUserConfig {
    /// Path of the socket.
    pub path: PathBuf,
    /// Which end creates the socket.
    pub role: Role,
    /// Mode and owners of the socket, if this end creates it.
    pub access: SocketAccess,
    /// Number of queue pairs; `None` for that of the program's other ports.
    pub queues: Option<usize>,
    /// Features to request in addition to the default ones or to leave out.
    pub features: Option<String>,
    /// MAC address; derived from a counter if not given.
    pub mac: Option<MacAddress>,
    /// Whether the back-end is to track in-flight descriptors, if it can. Otherwise the next back-end finds the
    /// descriptors that this one has not returned available again, and may send their frames twice.
    pub inflight: bool,
}

impl VhostConfig {
    /// Creates the options of a socket at a path, with defaults for the others.
    pub fn new(path: impl Into<PathBuf>, role: Role) -> Self {
        Self { path: path.into(), role, access: SocketAccess::default(), queues: None, features: None }
    }
}

impl VirtioUserConfig {
    /// Creates the options of a socket at a path, with defaults for the others.
    pub fn new(path: impl Into<PathBuf>, role: Role) -> Self {
        let VhostConfig { path, role, access, queues, features } = VhostConfig::new(path, role);
        Self { path, role, access, queues, features, mac: None, inflight: true }
    }
}

/// This process's side of a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Creates the socket and waits for the other end.
    Listen,
    /// Connects to the socket of the other end.
    Connect,
}

/// Parses `PATH[,client][,mode=…][,user=…][,group=…][,queues=N][,features=…]`.
pub(super) fn vhost(argument: &str) -> Result<VhostConfig, String> {
    let VirtioUserConfig { path, role, access, queues, features, .. } = parse("vhost", Role::Listen, argument)?;
    Ok(VhostConfig { path, role, access, queues, features })
}

/// Parses `PATH[,server][,mode=…][,user=…][,group=…][,queues=N][,features=…][,mac=…][,inflight=off]`.
pub(super) fn virtio_user(argument: &str) -> Result<VirtioUserConfig, String> {
    parse("virtio-user", Role::Connect, argument)
}

fn parse(kind: &str, role: Role, argument: &str) -> Result<VirtioUserConfig, String> {
    let (path, options) = argument.split_once(',').unwrap_or((argument, ""));
    if path.is_empty() {
        return Err(format!("the socket is missing; write {kind}:PATH"));
    }
    let mut config = VirtioUserConfig::new(path, role);
    for option in options.split(',').filter(|option| !option.is_empty()) {
        match option.split_once('=').unwrap_or((option, "")) {
            ("server", "") => config.role = Role::Listen,
            ("client", "") => config.role = Role::Connect,
            ("queues", value) => match number("queues", value, "2")? {
                queues @ 1..=64 => config.queues = Some(queues),
                queues => return Err(format!("queues={queues}; write 1 to 64")),
            },
            ("features", value) => config.features = Some(value.into()),
            ("mac", value) if kind == "virtio-user" => config.mac = Some(value.replace('-', ":").parse()?),
            ("inflight", "on") if kind == "virtio-user" => config.inflight = true,
            ("inflight", "off") if kind == "virtio-user" => config.inflight = false,
            (key, value) if config.access.set(key, value)? => {}
            (key, _) => {
                let more = if kind == "virtio-user" { ", mac=, inflight=off" } else { "" };
                return Err(format!(
                    "'{kind}' has no option '{key}'; it has client, server, mode=, user=, group=, queues=N, features={more}"
                ));
            }
        }
    }
    if config.role == Role::Connect && !config.access.is_default() {
        return Err("mode=, user= and group= belong to the end that creates the socket; this one connects to it".into());
    }
    Ok(config)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Address;

    #[test]
    fn both_ends_have_a_role_of_their_own() {
        let plain = |path: &str, role| VhostConfig::new(path, role);
        let parse = |text: &str| text.parse::<Address>().unwrap_or_else(|error| panic!("{text}: {error}"));
        assert_eq!(parse("vhost:/run/a"), Address::Vhost(plain("/run/a", Role::Listen)));
        assert_eq!(parse("vhost:a,client"), Address::Vhost(plain("a", Role::Connect)));
        let Address::VirtioUser(config) = parse("virtio-user:a") else { panic!() };
        assert_eq!((config.role, config.mac, config.inflight), (Role::Connect, None, true));
        let Address::VirtioUser(config) = parse("virtio-user:a,inflight=off") else { panic!() };
        assert!(!config.inflight);
        let Address::VirtioUser(config) =
            parse("virtio-user:a:b,server,queues=2,features=packed-mrg_rxbuf,mac=02:00:00:00:00:07")
        else {
            panic!()
        };
        assert_eq!((config.path, config.role, config.queues), ("a:b".into(), Role::Listen, Some(2)));
        assert_eq!(config.mac, Some(MacAddress([2, 0, 0, 0, 0, 7])));
        assert_eq!(config.features.as_deref(), Some("packed-mrg_rxbuf"));
        assert_eq!(parse("vhost:a,client,queues=2").to_string(), "vhost:a");
    }

    #[test]
    fn wrong_options_say_what_would_be_right() {
        for (text, hint) in [
            ("vhost:", "vhost:PATH"),
            ("virtio-user:,server", "virtio-user:PATH"),
            ("vhost,client:a", "behind"),
            ("vhost:a,mode=999", "octal"),
            ("vhost:a,user=no such", "there is no user 'no such'"),
            ("vhost:a,group=no such", "there is no group 'no such'"),
            ("vhost:a,client,mode=0660", "the end that creates the socket"),
            ("vhost:a,queues=0", "1 to 64"),
            ("vhost:a,queues=many", "queues=2"),
            ("vhost:a,client=yes", "no option 'client'"),
            (
                "virtio-user:a,packed=on",
                "client, server, mode=, user=, group=, queues=N, features=, mac=, inflight=off",
            ),
            ("vhost:a,inflight=off", "no option 'inflight'"),
            ("vhost:a,mac=02:00:00:00:00:07", "no option 'mac'"),
        ] {
            let error = text.parse::<Address>().expect_err(text).to_string();
            assert!(error.contains(hint) && !error.contains('\n'), "{text}: {error}");
        }
    }
}
