//! The completions for a shell: clap's, and the names of the locks that are held.

use clap::Command;
use clap_complete::Shell;

/// The argument that is a lock's name, as clap has zsh complete it: by files.
const NAME_IN_ZSH: &str = r"The lock'\''s name:_default'";

/// The script that completes the tool's command line.
pub(crate) fn script(shell: Shell, tool: &mut Command) -> String {
    let mut script = Vec::new();
    clap_complete::generate(shell, tool, "leasehold", &mut script);
    let script = String::from_utf8_lossy(&script);
    match shell {
        Shell::Bash => script.into_owned() + include_str!("completions/names.bash"),
        Shell::Fish => script.into_owned() + include_str!("completions/names.fish"),
        // Before the end of the script, which runs when it is read.
        Shell::Zsh => script.replace(NAME_IN_ZSH, &NAME_IN_ZSH.replace("_default", "_leasehold_names")).replacen(
            "_leasehold() {",
            &format!("{}_leasehold() {{", include_str!("completions/names.zsh")),
            1,
        ),
        _ => script.into_owned(),
    }
}
