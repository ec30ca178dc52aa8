//! `ringpass generate`: every subcommand has a manual page that `man` takes without a warning and that `apropos` can find, and the
//! completions are those of the three shells.

use std::path::Path;
use std::process::Command;

use crate::common::{RINGPASS, built, folder, run, text};

/// Returns the paths of the manual pages in a folder, in order.
fn pages(folder: &Path) -> Vec<std::path::PathBuf> {
    let mut pages: Vec<_> = ["man1", "man5"]
        .iter()
        .flat_map(|section| std::fs::read_dir(folder.join("man").join(section)).expect("a section"))
        .map(|entry| entry.expect("an entry").path())
        .collect();
    pages.sort();
    pages
}

/// Returns the subcommands of a command line, as its help lists them.
fn subcommands(command: &[&str]) -> Vec<String> {
    let help = run(&[command, &["--help"]].concat());
    let list = help.lines().skip_while(|line| *line != "Commands:").skip(1).take_while(|line| !line.is_empty());
    // Names are indented by two spaces, the rest of a long description by more.
    let names = list.filter(|line| line.starts_with("  ") && !line.starts_with("   "));
    names.filter_map(|line| line.split_whitespace().next()).filter(|name| *name != "help").map(str::to_owned).collect()
}

#[test]
fn every_subcommand_has_a_page_that_man_and_apropos_can_read() {
    let folder = folder();
    let bench = built("ringpass-bench");
    run(&[RINGPASS, "generate", text(folder.path())]);
    run(&[text(&bench), "generate", text(folder.path())]);

    let there = pages(folder.path());
    let names: Vec<_> = there.iter().map(|page| page.file_name().expect("a name").to_str().expect("UTF-8")).collect();
    let mut all = vec!["ringpass.1".to_owned(), "ringpass.toml.5".to_owned()];
    for name in subcommands(&[RINGPASS]) {
        let inner = if name == "bench" { subcommands(&[text(&bench)]) } else { subcommands(&[RINGPASS, &name]) };
        all.extend(inner.iter().map(|inner| format!("ringpass-{name}-{inner}.1")));
        all.push(format!("ringpass-{name}.1"));
    }
    all.sort();
    assert_eq!(names, all);

    for page in &there {
        let man = Command::new("man")
            .args(["--warnings", "-E", "UTF-8", "-l", "-Tutf8", "-Z", text(page)])
            .env("MANROFFSEQ", "")
            .env("MANWIDTH", "80")
            .env("LC_ALL", "C.UTF-8")
            .output()
            .expect("man-db is installed");
        let warnings = String::from_utf8_lossy(&man.stderr);
        assert!(man.status.success() && warnings.is_empty(), "{}: {warnings}", page.display());
        let found = run(&["lexgrog", text(page)]);
        let name = page.file_stem().expect("a name").to_str().expect("UTF-8");
        assert!(found.contains(&format!("\"{name} - ")), "{found}");
    }

    // What the help has at its end is there too, and so is the reference of the file, with an example.
    let shown = run(&["man", "-l", text(&folder.path().join("man/man1/ringpass-ctl-add.1"))]);
    assert!(shown.contains("EXAMPLES") && shown.contains("ctl add lan tap:c --vlan 10"), "{shown}");
    let shown = run(&["man", "-l", text(&folder.path().join("man/man5/ringpass.toml.5"))]);
    assert!(["[[switch.port]]", "trunk", "address = \"tap:host\""].iter().all(|text| shown.contains(text)), "{shown}");
}

#[test]
fn completions_are_written_for_three_shells() {
    let folder = folder();
    run(&[RINGPASS, "generate", text(folder.path())]);
    let read = |path: &str| std::fs::read_to_string(folder.path().join(path)).expect("a completion");
    assert!(read("zsh/vendor-completions/_ringpass").starts_with("#compdef ringpass\n"));
    assert!(
        read("fish/vendor_completions.d/ringpass.fish")
            .starts_with("complete --keep-order --exclusive --command ringpass ")
    );
    // Bash finds the program in the PATH, as it is installed.
    let script = format!(
        "PATH={}:$PATH; source {}; COMP_WORDS=(ringpass netm); COMP_CWORD=1
         _clap_complete_ringpass ringpass netm; echo \"${{COMPREPLY[@]}}\"",
        text(Path::new(RINGPASS).parent().expect("a folder")),
        text(&folder.path().join("bash-completion/completions/ringpass")),
    );
    assert_eq!(run(&["bash", "-c", &script]).trim(), "netmapd");

    // A folder that cannot be made is named in one line.
    let file = folder.path().join("file");
    std::fs::write(&file, "").expect("a file");
    let (status, _, errors) = crate::common::ringpass(&["generate", text(&file)]);
    assert_eq!(status, Some(1));
    assert!(errors.contains(text(&file)) && errors.lines().count() == 1, "{errors}");
}
