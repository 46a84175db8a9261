//! Programs of the machine that the sandbox uses: `ip` and `nft`.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Where administrators' programs are, which an ordinary user's `PATH` may lack.
const ADMINISTRATION: [&str; 2] = ["/usr/sbin", "/sbin"];

/// A program that is not installed.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the program {program:?} is missing: install the package {package} (apt-get install {package}); `setpoint dev --nodes hollow` works without it"
)]
pub struct MissingTool {
    /// Name of the program.
    pub program: &'static str,
    /// Debian's and Ubuntu's package that has it.
    pub package: &'static str,
}

/// Finds a program that must be there.
pub(crate) fn require(program: &'static str, package: &'static str) -> Result<PathBuf, MissingTool> {
    find(program).ok_or(MissingTool { program, package })
}

/// Finds a program in `PATH` and in the directories for administration.
pub(crate) fn find(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(ADMINISTRATION.iter().map(PathBuf::from))
        .map(|directory| directory.join(program))
        .find(|file| file.is_file())
}

/// Runs a program with `input` and waits for it; an error has the first line of what it wrote.
pub(crate) fn run(program: &Path, arguments: &[&str], input: &str) -> io::Result<()> {
    let mut child = Command::new(program)
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()?;
    if let Some(mut stdin) = child.stdin.take() {
        stdin.write_all(input.as_bytes())?;
    }
    let output = child.wait_with_output()?;
    check(program, output.status.success(), &output.stderr)
}

/// As [`run`], without blocking.
pub(crate) async fn run_async(program: &Path, arguments: &[&str], input: &str) -> io::Result<()> {
    use tokio::io::AsyncWriteExt;
    let mut child = tokio::process::Command::new(program)
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()?;
    if let Some(mut stdin) = child.stdin.take() {
        stdin.write_all(input.as_bytes()).await?;
    }
    let output = child.wait_with_output().await?;
    check(program, output.status.success(), &output.stderr)
}

fn check(program: &Path, success: bool, errors: &[u8]) -> io::Result<()> {
    if success {
        return Ok(());
    }
    let errors = String::from_utf8_lossy(errors);
    let line = errors.lines().find(|line| !line.trim().is_empty()).unwrap_or("it failed without a message");
    Err(io::Error::other(format!("{}: {line}", program.display())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_program_is_named_with_its_package() {
        let error = require("no-such-program", "some-package").unwrap_err();
        assert!(error.to_string().contains("apt-get install some-package"), "{error}");
    }

    #[tokio::test]
    async fn the_first_line_of_what_failed_is_the_error() {
        let error = run_async(Path::new("/bin/sh"), &["-s"], "echo first >&2; echo second >&2; exit 3")
            .await
            .unwrap_err();
        assert_eq!(error.to_string(), "/bin/sh: first");
        run(Path::new("/bin/sh"), &["-s"], "exit 0").unwrap();
    }
}
