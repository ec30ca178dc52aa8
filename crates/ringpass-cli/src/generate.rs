//! The hidden subcommand `ringpass generate FOLDER`, which `make install` and the package run: manual pages and completions of shells,
//! from the same types as `--help`.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use clap::Command;
use clap_complete::env::{Bash, EnvCompleter, Fish, Zsh};
use clap_mangen::Man;
use clap_mangen::roff::{Inline, Roff, bold, roman};
use ringpass::Error;

use crate::config_file;

/// Write the manual pages and the completions of shells into a folder as /usr/share is one
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The folder, made if need be
    pub folder: PathBuf,
}

const EXAMPLES: &str = "EXAMPLES:
  for one's own shell and man:
      ringpass generate ~/.local/share";

/// Where each shell looks for the completions of a program that is being typed.
const COMPLETIONS: [(&dyn EnvCompleter, &str); 3] = [
    (&Bash, "bash-completion/completions/ringpass"),
    (&Zsh, "zsh/vendor-completions/_ringpass"),
    (&Fish, "fish/vendor_completions.d/ringpass.fish"),
];

const EXAMPLE_FILE: &str = include_str!("config_file/example.toml");

/// Runs the subcommand for the program whose command line is `cli`.
pub fn run(args: Args, cli: Command) -> Result<(), Error> {
    manual_pages(cli, &args.folder)?;
    write(&args.folder.join("man/man5/ringpass.toml.5"), config_file::manual_page(EXAMPLE_FILE).render().as_bytes())?;
    for (shell, path) in COMPLETIONS {
        let mut script = Vec::new();
        shell
            .write_registration("COMPLETE", "ringpass", "ringpass", "ringpass", &mut script)
            .expect("memory takes all");
        write(&args.folder.join(path), &script)?;
    }
    Ok(())
}

/// Writes a manual page for a program and for each of its subcommands, as `man/man1/ringpass-ctl-add.1`.
pub fn manual_pages(mut cli: Command, folder: &Path) -> Result<(), Error> {
    cli = cli.disable_help_subcommand(true);
    cli.build();
    add_page(&cli, None, &folder.join("man/man1"))
}

fn add_page(command: &Command, parent: Option<&str>, folder: &Path) -> Result<(), Error> {
    let name = command.get_display_name().unwrap_or_else(|| command.get_name()).replace(' ', "-");
    let inner = || command.get_subcommands().filter(|command| !command.is_hide_set());
    for command in inner() {
        add_page(command, Some(&name), folder)?;
    }
    let path = folder.join(format!("{name}.1"));
    let mut page = Vec::new();
    render(command, &name, parent, &mut page).expect("memory takes all");
    write(&path, &page)
}

/// Renders a page; what the help has at its end, under headings in capitals, are sections of their own.
fn render(command: &Command, name: &str, parent: Option<&str>, page: &mut Vec<u8>) -> io::Result<()> {
    let man = Man::new(command.clone().display_name(name)).source(concat!("ringpass ", env!("CARGO_PKG_VERSION")));
    man.render_title(page)?;
    man.render_name_section(page)?;
    man.render_synopsis_section(page)?;
    man.render_description_section(page)?;
    man.render_options_section(page)?;
    if command.get_subcommands().any(|command| !command.is_hide_set()) {
        man.render_subcommands_section(page)?;
    }
    let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
    let mut rest = Roff::new();
    for line in help.lines() {
        match line.strip_suffix(':') {
            Some(heading) if !line.starts_with(' ') => {
                rest.control("fi", []).control("SH", [heading]).control("nf", [])
            }
            _ => rest.text([roman(line)]),
        };
    }
    rest.control("fi", []).control("SH", ["SEE ALSO"]);
    let section = |name: &str| [bold(name), roman("(1)")];
    let related: Vec<Inline> = match parent {
        Some(parent) => section(parent).into(),
        None => vec![bold("ringpass.toml"), roman("(5)")],
    };
    rest.text(related).to_writer(page)
}

fn write(path: &Path, text: &[u8]) -> Result<(), Error> {
    let folder = path.parent().expect("a folder");
    let written = fs::create_dir_all(folder).and_then(|()| fs::write(path, text));
    written.map_err(|error| Error::os(path.display().to_string(), error))
}

#[cfg(test)]
mod tests {
    use std::fmt::Write;

    use clap::CommandFactory;

    use super::*;
    use crate::Cli;
    use crate::docs_page;

    const INTRODUCTION: &str = "# The commands

What `ringpass COMMAND --help` prints, of all commands; made from the program by its tests. `man ringpass-COMMAND` has the same.
";

    /// Returns the page of the documentation that has the help of all commands.
    fn page() -> String {
        let mut cli = Cli::command().disable_help_subcommand(true).term_width(110);
        cli.build();
        let mut page = String::from(INTRODUCTION);
        add(&mut page, &cli, "ringpass");
        page
    }

    fn add(page: &mut String, command: &Command, name: &str) {
        let help = command.clone().render_long_help().to_string();
        let lines: Vec<_> = help.trim_end().lines().map(str::trim_end).collect();
        let _ = write!(page, "\n## {name}\n\n```text\n{}\n```\n", lines.join("\n"));
        for inner in command.get_subcommands().filter(|command| !command.is_hide_set()) {
            add(page, inner, &format!("{name} {}", inner.get_name()));
        }
    }

    #[test]
    fn the_page_in_the_documentation_is_up_to_date() {
        docs_page::check("commands.md", &page());
    }
}
