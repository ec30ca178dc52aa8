//! What a service consists of, in a form in which two can be compared: the file's own keys, by the names of switches and ports.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{SECTIONS, Service, is_service, parse};

/// A service, as its file has it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Outline {
    /// Tables that are not about ports: `options`, `control`, `metrics`, `web`, `model`, `netmap`.
    pub tables: BTreeMap<String, Value>,
    /// Switches and pairs, by name.
    pub switches: BTreeMap<String, SwitchOutline>,
}

/// A switch, or a pair of ports.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SwitchOutline {
    /// Its keys, without its ports; a pair has all of its keys here.
    pub keys: Value,
    /// Keys of its ports, by their names.
    pub ports: BTreeMap<String, Value>,
}

/// Reads the text of a file.
///
/// # Errors
/// The first thing that is wrong with it, as [`check_text`](super::check_text).
pub(super) fn outline(text: &str) -> Result<(Service, Outline), String> {
    let service = parse(text)?;
    let wrong = |error: &dyn std::fmt::Display| format!(": {error}");
    let table: toml::Table = text.parse().map_err(|error: toml::de::Error| wrong(&error.message()))?;
    let mut file = serde_json::to_value(table).map_err(|error| wrong(&error))?;
    let mut outline = Outline::default();
    let mut list = |key: &str| match file.get_mut(key).map(Value::take) {
        Some(Value::Array(tables)) => tables,
        _ => Vec::new(),
    };
    // In the order in which the plans are.
    let tables = match is_service(text) {
        true => [list("switch"), list("fwd")].concat(),
        false => vec![file.take()],
    };
    for key in SECTIONS.iter().filter(|key| !["switch", "fwd"].contains(*key)) {
        if let Some(table) = file.get(key) {
            outline.tables.insert((*key).to_owned(), table.clone());
        }
    }
    for (mut keys, plan) in tables.into_iter().zip(&service.switches) {
        let ports = match keys.as_object_mut().and_then(|keys| keys.remove("port")) {
            Some(Value::Array(ports)) => ports,
            _ => Vec::new(),
        };
        let names = plan.ports.iter().map(|port| port.rules.name.clone());
        let ports = names.zip(ports).collect();
        outline.switches.insert(plan.name.clone().unwrap_or_default(), SwitchOutline { keys, ports });
    }
    Ok((service, outline))
}

/// A step from one service to another.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// A port leaves its switch.
    Remove(PortPlace),
    /// A port comes to a switch.
    Add(PortPlace),
    /// A port gets other rules, and goes on passing frames.
    Set {
        /// The port, with its new keys.
        place: PortPlace,
        /// Its keys before.
        before: Value,
    },
}

/// Keys of a port that can be changed while it passes frames.
pub const RULES: [&str; 7] = ["vlan", "trunk", "native", "isolation", "sources", "stations", "flood"];

/// Returns whether two ports have the same keys, apart from [`RULES`].
pub fn rules_alone_differ(one: &Value, other: &Value) -> bool {
    let rest = |keys: &Value| {
        let keys = keys.as_object().into_iter().flatten();
        let rest = keys.filter(|(key, _)| !RULES.contains(&&key[..]));
        rest.map(|(key, value)| (key.clone(), value.clone())).collect::<BTreeMap<_, _>>()
    };
    rest(one) == rest(other)
}

/// A port of a switch.
#[derive(Clone, Debug, PartialEq)]
pub struct PortPlace {
    /// Name of the switch.
    pub switch: String,
    /// Name of the port.
    pub name: String,
    /// Its keys.
    pub port: Value,
}

impl Step {
    /// Returns the step back.
    pub fn reverse(&self) -> Self {
        match self.clone() {
            Self::Remove(place) => Self::Add(place),
            Self::Add(place) => Self::Remove(place),
            Self::Set { place, before } => {
                let after = place.port;
                Self::Set { place: PortPlace { port: before, ..place }, before: after }
            }
        }
    }

    /// Returns the port.
    pub fn place(&self) -> &PortPlace {
        let (Self::Remove(place) | Self::Add(place) | Self::Set { place, .. }) = self;
        place
    }
}

impl fmt::Display for Step {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Remove(PortPlace { name, .. }) => write!(to, "- {name}"),
            Self::Add(PortPlace { switch, name, .. }) => write!(to, "+ {name} ({switch})"),
            Self::Set { place, .. } => write!(to, "~ {}", place.name),
        }
    }
}

impl Outline {
    /// Returns the steps from this service to another, those that remove ports first.
    ///
    /// # Errors
    /// What cannot be changed while it runs, in a line.
    pub fn steps_to(&self, other: &Self) -> Result<Vec<Step>, String> {
        let restart = |what: String| format!("{what} cannot be changed while the service runs; restart it");
        let keys = self.tables.keys().chain(other.tables.keys());
        if let Some(key) = keys.into_iter().find(|key| self.tables.get(*key) != other.tables.get(*key)) {
            return Err(restart(format!("[{key}]")));
        }
        if !self.switches.keys().eq(other.switches.keys()) {
            let names = |outline: &Self| outline.switches.keys().cloned().collect::<Vec<_>>().join(", ");
            return Err(restart(format!("the list of switches and pairs ({} to {})", names(self), names(other))));
        }
        let [mut removed, mut set, mut added] = [const { Vec::new() }; 3];
        for ((switch, before), after) in self.switches.iter().zip(other.switches.values()) {
            if before.keys != after.keys {
                return Err(restart(format!("'{switch}' apart from its ports")));
            }
            let place = |name: &String, port: &Value| PortPlace {
                switch: switch.clone(),
                name: name.clone(),
                port: port.clone(),
            };
            for (name, port) in &before.ports {
                match after.ports.get(name) {
                    Some(other) if other == port => {}
                    Some(other) if rules_alone_differ(port, other) => {
                        set.push(Step::Set { place: place(name, other), before: port.clone() });
                    }
                    _ => removed.push(Step::Remove(place(name, port))),
                }
            }
            for (name, port) in &after.ports {
                if before.ports.get(name).is_none_or(|other| !rules_alone_differ(other, port)) {
                    added.push(Step::Add(place(name, port)));
                }
            }
        }
        removed.extend(set);
        removed.extend(added);
        Ok(removed)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(text: &str) -> Outline {
        outline(text).unwrap_or_else(|why| panic!("{why}: {text}")).1
    }

    const BEFORE: &str = "[options]\nbatch = 64\n[[switch]]\nname = \"lan\"\n[[switch.port]]\naddress = \"tap:a\"\n\
                          [[switch.port]]\naddress = \"tap:b\"\nname = \"b\"\nvlan = 10\n[[fwd]]\nname = \"up\"\na = \"null\"\nb = \"tap:u\"\n";

    #[test]
    fn ports_are_compared_by_name_and_keys() {
        let before = read(BEFORE);
        assert_eq!(before.steps_to(&before), Ok(vec![]));
        // Another form of the same.
        let same = BEFORE.replace("vlan = 10", "\"vlan\"=10 # the same");
        assert_eq!(before.steps_to(&read(&same)), Ok(vec![]));
        let after = BEFORE.replace("vlan = 10", "vlan = 11\n[[switch.port]]\naddress = \"tap:c\"");
        let steps = before.steps_to(&read(&after)).expect("ports alone");
        let place = |name: &str, port| PortPlace { switch: "lan".into(), name: name.into(), port };
        let b = |vlan| place("b", json!({ "address": "tap:b", "name": "b", "vlan": vlan }));
        let set = |from, to| Step::Set { place: b(to), before: b(from).port };
        assert_eq!(steps, [set(10, 11), Step::Add(place("tap:c", json!({ "address": "tap:c" })))]);
        assert_eq!(steps[0].reverse(), set(11, 10));
        let other = read(&BEFORE.replace("\"tap:b\"", "\"tap:d\""));
        let steps = before.steps_to(&other).expect("ports alone");
        assert!(
            matches!(&steps[..], [Step::Remove(old), Step::Add(new)] if *old == b(10) && new.name == "b"),
            "{steps:?}"
        );
    }

    #[test]
    fn what_needs_a_restart_is_refused() {
        let before = read(BEFORE);
        for (from, to, why) in [
            ("batch = 64", "batch = 32", "[options]"),
            ("[options]\nbatch = 64", "[metrics]\nlisten = \"/a\"", "[metrics]"),
            ("name = \"lan\"", "name = \"wan\"", "the list of switches"),
            ("name = \"lan\"", "name = \"lan\"\nageing = 20", "'lan' apart from its ports"),
            ("tap:u", "tap:v", "'up' apart from its ports"),
        ] {
            let error = before.steps_to(&read(&BEFORE.replace(from, to))).expect_err(why);
            assert!(error.contains(why) || why == "[metrics]" && error.contains("[options]"), "{error}");
        }
    }

    #[test]
    fn a_file_of_one_switch_is_a_service_too() {
        let one = read("ageing = 20\n[[port]]\naddress = \"tap:a\"\n[[port]]\naddress = \"tap:b\"\n");
        let switch = &one.switches["switch"];
        assert_eq!((&switch.keys, switch.ports.len()), (&json!({ "ageing": 20 }), 2));
        assert!(one.tables.is_empty());
    }
}
