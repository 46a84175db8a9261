//! What the documents say is what the code does: excerpts are verbatim, options and links exist.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests and their helpers")]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// All documents of the repository.
fn documents() -> Vec<PathBuf> {
    let mut documents = Vec::new();
    for folder in ["", "docs", "docs/sdk", "operators/redis"] {
        let entries = std::fs::read_dir(root().join(folder)).unwrap();
        let files = entries.map(|entry| entry.unwrap().path());
        documents.extend(files.filter(|path| path.extension().is_some_and(|extension| extension == "md")));
    }
    assert!(documents.len() > 10, "{documents:?}");
    documents
}

/// A block of code whose first line is a comment with a path is an excerpt of that file.
#[test]
fn excerpts_are_verbatim() {
    let mut excerpts = 0;
    for document in documents() {
        let text = read(&document);
        for block in text.split("```rust\n// ").skip(1) {
            let (path, rest) = block.split_once('\n').unwrap();
            let excerpt = rest.split_once("```").unwrap().0;
            let source = read(&root().join(path));
            assert!(source.contains(excerpt), "{}: the excerpt differs from {path}", document.display());
            excerpts += 1;
        }
    }
    assert!(excerpts >= 3, "{excerpts}");
}

#[test]
fn links_lead_to_files() {
    for document in documents() {
        for link in read(&document).split("](").skip(1) {
            let target = link.split([')', '#']).next().unwrap();
            if target.is_empty() || target.starts_with("http") {
                continue;
            }
            let path = document.parent().unwrap().join(target);
            assert!(path.exists(), "{}: no {target}", document.display());
        }
    }
}

/// The book has each page of `docs/` in its table of contents, once, and its pages lead to nothing outside of it: the rendered book stands alone.
#[test]
fn the_book_is_whole() {
    let docs = std::fs::canonicalize(root().join("docs")).unwrap();
    let contents = docs.join("SUMMARY.md");
    let links = |document: &Path| -> Vec<PathBuf> {
        let text = read(document);
        let targets = text.split("](").skip(1).map(|link| link.split([')', '#']).next().unwrap().to_owned());
        let targets = targets.filter(|target| !target.is_empty() && !target.starts_with("http"));
        targets
            .map(|target| std::fs::canonicalize(document.parent().unwrap().join(target)).unwrap())
            .collect()
    };
    let mut listed = links(&contents);
    listed.sort();
    let pages = documents().into_iter().map(|path| std::fs::canonicalize(path).unwrap());
    let mut pages: Vec<_> = pages.filter(|path| path.starts_with(&docs) && *path != contents).collect();
    pages.sort();
    assert_eq!(listed, pages, "docs/SUMMARY.md and the pages in docs/");
    for page in pages {
        for target in links(&page) {
            let page = page.display();
            assert!(
                target.starts_with(&docs),
                "{page}: {} is not in the book; name its path in words",
                target.display()
            );
        }
    }
}

/// The words that begin with `--`.
fn options(text: &str) -> BTreeSet<String> {
    let words = text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '-'));
    words.filter(|word| word.len() > 2 && word.starts_with("--")).map(str::to_owned).collect()
}

#[test]
fn the_options_of_dev_are_documented() {
    let help = Command::new(env!("CARGO_BIN_EXE_setpoint")).args(["dev", "--help"]).output().unwrap();
    let mut known = options(&String::from_utf8(help.stdout).unwrap());
    known.remove("--help");
    let text = read(&root().join("docs/embedded-cluster.md"));
    let table: String = text.lines().filter(|line| line.starts_with("| `--")).collect();
    assert_eq!(options(&table), known);
}
