//! Instructions per packet, counted by callgrind in a child process. The counts are exact, whatever else the
//! machine does.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::path::Path;
use std::process::{Command, Stdio};

use super::folder::TempDir;
use super::measure::{Bench, Cell, Stage};
use super::pages::pages_name;
use ringpass::Error;
use ringpass_cli::output::print_line;

/// Rounds of the two runs. Only their difference counts, so that start-up does not.
const ROUNDS: [u64; 2] = [4, 12];

/// Returns the instructions per packet of each stage, in the order of [`Stage::ALL`].
pub fn count(cell: &Cell) -> Result<[f64; 5], Error> {
    let mut arguments: Vec<String> =
        ["driver", "--kind", cell.driver.name(), "--pages", pages_name(cell.pages)].map(String::from).into();
    for (option, value) in [("--batch", cell.batch), ("--ring", cell.ring)] {
        arguments.extend([option.into(), value.to_string()]);
    }
    if cell.offloads {
        arguments.push("--offloads".into());
    }
    if !cell.vector {
        arguments.push("--without-vector".into());
    }
    arguments.push("--under-callgrind".into());
    let counts = per_packet(&arguments, &Stage::ALL.map(Stage::function))?;
    Ok(std::array::from_fn(|stage| counts[stage]))
}

/// Returns the instructions per packet of some functions. The child of this program runs as many rounds as
/// `--rounds` says and prints the number of their packets.
pub fn per_packet(arguments: &[String], functions: &[&str]) -> Result<Vec<f64>, Error> {
    let [short, long] = [child(arguments, functions, ROUNDS[0])?, child(arguments, functions, ROUNDS[1])?];
    let packets = (long.packets - short.packets) as f64;
    let mut counts = Vec::new();
    for (function, (&short, &long)) in functions.iter().zip(short.costs.iter().zip(&long.costs)) {
        // Three times the rounds should take about three times the instructions. If not, callgrind has not
        // attributed all of the function's instructions to it.
        if short == 0 || !(2.5..3.5).contains(&(long as f64 / short as f64)) {
            let what = format!("callgrind counted {short} and {long} instructions in {function}");
            return Err(Error::Fault(format!(
                "{what} for {ROUNDS:?} rounds, which cannot be; build with debug symbols"
            )));
        }
        counts.push((long - short) as f64 / packets);
    }
    Ok(counts)
}

/// Returns the instructions per packet of a function that the child calls in its rounds alone, from one run.
pub fn per_packet_of_rounds(arguments: &[String], function: &str) -> Result<f64, Error> {
    let [_, rounds] = ROUNDS;
    let Counts { packets, costs } = child(arguments, &[function], rounds)?;
    match costs[..] {
        [cost] if cost > 0 && packets > 0 => Ok(cost as f64 / packets as f64),
        _ => Err(Error::Fault(format!("callgrind has not seen {function}; build with debug symbols"))),
    }
}

/// Runs `rounds` rounds under callgrind, and prints the number of packets.
pub fn run_rounds(cell: &Cell, rounds: u64) -> Result<(), Error> {
    let mut bench = Bench::new(cell)?;
    (0..rounds).try_for_each(|_| bench.round().map(drop))?;
    print_line(&(bench.packets() as u64 * rounds).to_string());
    Ok(())
}

struct Counts {
    packets: u64,
    costs: Vec<u64>,
}

fn child(arguments: &[String], functions: &[&str], rounds: u64) -> Result<Counts, Error> {
    let os = |what: &str, source: io::Error| Error::os(what, source);
    // A file for each process: the child has children of its own.
    let folder = TempDir::new("callgrind")?;
    let program = std::env::current_exe().map_err(|error| os("this program's own file", error))?;
    let mut command = Command::new("valgrind");
    command.arg("--tool=callgrind").arg(format!("--callgrind-out-file={}/%p", folder.path().display())).arg(program);
    command.args(arguments).arg(format!("--rounds={rounds}")).stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = command.spawn().map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => Error::NotFound("--instructions needs valgrind: sudo apt install valgrind".into()),
        _ => os("valgrind", error),
    })?;
    let file = folder.path().join(child.id().to_string());
    let output = child.wait_with_output().map_err(|error| os("valgrind", error))?;
    let costs = read_costs(&file, functions);
    let packets = String::from_utf8_lossy(&output.stdout).trim().parse().ok().filter(|_| output.status.success());
    match (packets, costs) {
        (Some(packets), Ok(costs)) => Ok(Counts { packets, costs }),
        (Some(_), Err(error)) => Err(os("what callgrind wrote", error)),
        (None, _) => {
            let text = String::from_utf8_lossy(&output.stderr);
            let last = text.lines().rfind(|line| !line.starts_with("==")).unwrap_or("it says nothing");
            Err(Error::Fault(format!("the program failed under valgrind ({}): {last}", output.status)))
        }
    }
}

fn read_costs(file: &Path, functions: &[&str]) -> io::Result<Vec<u64>> {
    let text = fs::read_to_string(file)?;
    let costs = inclusive_costs(&text);
    let sum = |function: &&str| costs.iter().filter(|(name, _)| name.contains(*function)).map(|(_, cost)| cost).sum();
    Ok(functions.iter().map(sum).collect())
}

/// Returns the instructions of each function including its callees, from a file in callgrind's format (valgrind
/// manual, "Callgrind Format Specification"). A line `fn=(number) name` is followed by lines with a position
/// and a cost: the function's own cost or, after `calls=`, that of a call. Only the first mention of a number,
/// which may be in `cfn=`, has the name.
fn inclusive_costs(text: &str) -> HashMap<&str, u64> {
    let mut names = HashMap::new();
    let mut costs = HashMap::new();
    let mut current = "";
    for line in text.lines() {
        if let Some(function) = line.strip_prefix("fn=").or_else(|| line.strip_prefix("cfn=")) {
            let (number, name) = function.split_once(' ').unwrap_or((function, ""));
            let name = *names.entry(number).or_insert(name);
            if line.starts_with("fn=") {
                current = name;
            }
        } else if line.starts_with(|first: char| first.is_ascii_digit() || "+-*".contains(first)) {
            let cost: u64 = line.split_whitespace().nth(1).and_then(|cost| cost.parse().ok()).unwrap_or(0);
            *costs.entry(current).or_insert(0) += cost;
        }
    }
    costs
}

#[cfg(test)]
mod tests {
    use super::inclusive_costs;

    #[test]
    fn costs_include_calls() {
        let text = "version: 1\nevents: Ir\nfl=(1) a.rs\nfn=(1) main\n16 400\ncfn=(2) measured_rx\ncalls=1 50\n+2 90\n\
                    \nfn=(2)\n20 30\nfi=(2) b.rs\n-3 20\ncfn=(3) refill\ncalls=4 9\n* 40\n\nfn=(3)\n9 40\n\ntotals: 530\n";
        let costs = inclusive_costs(text);
        assert_eq!((costs["main"], costs["measured_rx"], costs["refill"]), (490, 90, 40));
    }
}
