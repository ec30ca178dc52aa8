//! The benchmark `ringpass bench all`: every benchmark in turn, and a page of their results.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use ringpass::Error;
use ringpass_cli::errln;
use ringpass_cli::output::print_line;

use super::machine;

/// Run all benchmarks, and write a page of their results
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Page to write, in Markdown; its plots go into the folder 'plots' beside it
    #[arg(long, value_name = "FILE")]
    report: PathBuf,
    /// Measure a part of the cases in fewer rounds: a few minutes instead of some fifteen
    #[arg(long)]
    quick: bool,
}

const EXAMPLES: &str = "EXAMPLES:
  sudo ringpass bench all --report docs/performance.md         every case, some fifteen minutes
  sudo ringpass bench all --quick --report performance.md      a part of them, a few minutes";

/// One section of the page.
struct Section {
    title: &'static str,
    /// Explanation of what was measured and how to read it.
    text: &'static str,
    /// Arguments of the benchmark.
    arguments: &'static [&'static str],
    /// Further arguments with `--quick`.
    quick: &'static [&'static str],
    /// Plots that the benchmark writes.
    plots: bool,
}

const SECTIONS: &[Section] = &[
    Section {
        title: "The driver for Intel's 10-Gbit/s cards",
        text: "Cycles and instructions that one core spends on a packet of 60 bytes between two ports of a software 82599, whose rings the \
               model has filled beforehand, so that the card's own work is not counted. ixy's figures are those of its paper (section 5), \
               on a Xeon E3-1230 v2 at 3.3 GHz with a real card.",
        arguments: &["driver", "--instructions"],
        quick: &["--batch", "1,32,256", "--ring", "512", "--pages", "ordinary"],
        plots: true,
    },
    Section {
        title: "The same driver and DPDK's on the same cards",
        text: "Both forward between two software cards, which they find as PCI devices and which a second core plays, in alternating \
               rounds. Most of the time the core that plays the cards is what limits the rate.",
        arguments: &["driver", "--peer", "dpdk"],
        quick: &["--rounds", "1"],
        plots: false,
    },
    Section {
        title: "Many software cards on one thread",
        text: "One thread plays the cards, runs their drivers and forwards between each two of them, so that no cache line moves between \
               cores. Frames are counted by the forwarder, the cards and the drivers; the benchmark fails if the three differ.",
        arguments: &["model"],
        quick: &["--rounds", "1"],
        plots: false,
    },
    Section {
        title: "The driver for virtio cards",
        text: "The same for each kind of ring of virtio 1.2 (sections 2.7 and 2.8).",
        arguments: &["driver", "--driver", "virtio", "--instructions"],
        quick: &["--batch", "32", "--ring", "512", "--pages", "ordinary"],
        plots: false,
    },
    Section {
        title: "Latency of a forwarder",
        text: "Time that a frame spends in the forwarder, by the size of its rings, below and above saturation, as in Table 2 of ixy's paper.",
        arguments: &["latency"],
        quick: &["--ring", "512", "-t", "0.5"],
        plots: true,
    },
    Section {
        title: "Without traffic",
        text: "CPU that a forwarder uses while nothing comes, and what its first packet after a pause takes.",
        arguments: &["idle"],
        quick: &["-t", "2", "-c", "50"],
        plots: false,
    },
    Section {
        title: "vhost-user, compared with DPDK",
        text: "Packets a second between a back-end and a front-end, on two cores: each pairing of Ringpass and DPDK's testpmd, measured in \
               alternating rounds. Ratios are medians over the rounds, to DPDK with DPDK in the same round.",
        arguments: &["vhost"],
        quick: &["--rounds", "1", "--size", "64"],
        plots: false,
    },
    Section {
        title: "The switch",
        text: "Cycles and instructions for a frame of 60 bytes that the learning switch takes from one port and gives to another, by the number \
               of its ports, stations and flows. One core; the ports are empty, so that the switch is all that is measured.",
        arguments: &["switch", "--instructions"],
        quick: &["--rounds", "50"],
        plots: false,
    },
    Section {
        title: "A card, a switch, a network function, and back",
        text: "The experiments of IOVTee: pattern (a) copies both ways, as switches do; with Rx queue mapping the card's DMA lands in \
               the guest's own buffers.",
        arguments: &["pvp"],
        quick: &["--quick"],
        plots: true,
    },
    Section {
        title: "The same path with DPDK as the switch",
        text: "testpmd forwards between the card and the guest, with its own drivers for both, in alternating rounds with Ringpass.",
        arguments: &["pvp", "--peer", "dpdk", "-t", "0.5"],
        quick: &["--rounds", "1"],
        plots: false,
    },
    Section {
        title: "netmap ports",
        text: "Pipes and VALE switches between processes, served without a kernel module: the experiments of ptnetmap.",
        arguments: &["netmap"],
        quick: &["--rounds", "1", "--only", "throughput,rtt", "--batch", "1,256"],
        plots: true,
    },
];

/// Runs the subcommand. The page is written when all benchmarks have succeeded.
pub fn run(args: &Args) -> Result<(), Error> {
    if !rustix::process::geteuid().is_root() {
        return Err(Error::Config("bench all makes namespaces, which takes root: sudo ringpass bench all".into()));
    }
    let folder = args.report.parent().unwrap_or(Path::new(""));
    let plots = folder.join("plots");
    let os = |path: &Path| {
        let what = path.display().to_string();
        move |source| Error::os(what, source)
    };
    fs::create_dir_all(&plots).map_err(os(&plots))?;
    // Fails now rather than after a quarter of an hour.
    drop(fs::OpenOptions::new().create(true).append(true).open(&args.report).map_err(os(&args.report))?);
    let start = Instant::now();
    let how = if args.quick { "a part of the cases, in few rounds" } else { "all cases" };
    let mut page = format!(
        "# Performance\n\nWritten by one command ({how}), on one machine, one benchmark after the other:\n\n    {}\n\nRatios to other \
         programs are from the same run.\n",
        machine::line()
    );
    for (number, section) in SECTIONS.iter().enumerate() {
        let mut arguments: Vec<&str> = section.arguments.to_vec();
        arguments.extend(if args.quick { section.quick } else { &[] });
        let folder = plots.join(section.arguments[0]);
        let folder = folder.to_str().ok_or_else(|| Error::Config("--report: write a path in UTF-8".into()))?;
        let command = format!("ringpass bench {}", arguments.join(" "));
        errln!("{} of {}, {} s so far: {command}", number + 1, SECTIONS.len(), start.elapsed().as_secs());
        let svg = ["--svg", folder];
        let output = output(&[&arguments[..], if section.plots { &svg[..] } else { &[] }].concat(), &command)?;
        page.push_str(&format!("\n## {}\n\n{}\n\n    $ {command}\n", section.title, section.text));
        for line in output.lines() {
            page.push_str(format!("    {line}").trim_end());
            page.push('\n');
        }
        if section.plots {
            page.push_str(&images(Path::new(folder)).map_err(os(Path::new(folder)))?);
        }
    }
    fs::write(&args.report, page).map_err(os(&args.report))?;
    print_line(&format!("wrote {}, in {} s", args.report.display(), start.elapsed().as_secs()));
    Ok(())
}

/// Runs this program with these arguments and returns its standard output.
fn output(arguments: &[&str], command: &str) -> Result<String, Error> {
    let os = |source| Error::os(command, source);
    let run = Command::new("/proc/self/exe").args(arguments).stderr(Stdio::inherit()).output().map_err(os)?;
    match run.status.success() {
        true => Ok(String::from_utf8_lossy(&run.stdout).into_owned()),
        false => Err(Error::Fault(format!("{command} has failed ({}); see above", run.status))),
    }
}

/// Returns Markdown that shows all plots in a folder, by name.
fn images(folder: &Path) -> std::io::Result<String> {
    let mut names: Vec<String> = fs::read_dir(folder)?
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .filter(|name| name.ends_with(".svg"))
        .collect();
    names.sort();
    let benchmark = folder.file_name().unwrap_or_default().to_string_lossy();
    let image = |name: &String| {
        format!("\n![{}](plots/{benchmark}/{name})\n", name.trim_end_matches(".svg").replace(['-', '_'], " "))
    };
    Ok(names.iter().map(image).collect())
}
