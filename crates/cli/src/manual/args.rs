//! The arguments of `millpond completions` and `millpond man`.

use std::path::PathBuf;

use clap_complete::Shell;

#[derive(Debug, Clone, Copy, clap::Args)]
#[command(after_help = "\
Examples:
  . <(millpond completions bash)                   in ~/.bashrc
  millpond completions zsh > ~/.zfunc/_millpond    with ~/.zfunc in fpath
  millpond completions fish > ~/.config/fish/completions/millpond.fish")]
pub(crate) struct CompletionsArgs {
    /// The shell
    #[arg(value_enum)]
    pub(crate) shell: Shell,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Example:
  millpond man ~/.local/share/man/man1 && man millpond-train")]
pub(crate) struct ManArgs {
    /// Folder for the pages
    pub(crate) dir: PathBuf,
}
