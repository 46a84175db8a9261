//! Differences of texts as Python's `difflib` finds them (Ratcliff and Obershelp's algorithm): kube-apiserver shows those of immutable fields.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

/// How many equal lines stand around a difference.
const CONTEXT: usize = 3;
/// From this many lines on, those that are very frequent say nothing about what belongs together.
const LONG: usize = 200;

/// The differences between two texts, as `diff -u` without its heading; empty for equal ones.
pub(in crate::builtin) fn unified(old: &str, new: &str) -> String {
    let (old, new): (Vec<&str>, Vec<&str>) = (old.split('\n').collect(), new.split('\n').collect());
    let mut out = String::new();
    for group in grouped(&edits(&old, &new)) {
        let (Some(first), Some(last)) = (group.first(), group.last()) else { continue };
        let (left, right) = (range(first.old.0, last.old.1), range(first.new.0, last.new.1));
        let _ = writeln!(out, "@@ -{left} +{right} @@");
        let mut lines = |sign: char, lines: &[&str]| {
            for line in lines {
                out.push(sign);
                out.push_str(line);
                out.push('\n');
            }
        };
        for edit in group {
            if edit.equal {
                lines(' ', &old[edit.old.0..edit.old.1]);
            } else {
                lines('-', &old[edit.old.0..edit.old.1]);
                lines('+', &new[edit.new.0..edit.new.1]);
            }
        }
    }
    out
}

/// A stretch of lines that is the same in both, or was replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Edit {
    equal: bool,
    old: (usize, usize),
    new: (usize, usize),
}

fn range(start: usize, end: usize) -> String {
    match end - start {
        0 => format!("{start},0"),
        1 => format!("{}", start + 1),
        length => format!("{},{length}", start + 1),
    }
}

fn edits(old: &[&str], new: &[&str]) -> Vec<Edit> {
    let (mut edits, mut i, mut j) = (Vec::new(), 0, 0);
    for (a, b, size) in matches(old, new) {
        if i < a || j < b {
            edits.push(Edit { equal: false, old: (i, a), new: (j, b) });
        }
        (i, j) = (a + size, b + size);
        if size > 0 {
            edits.push(Edit { equal: true, old: (a, i), new: (b, j) });
        }
    }
    edits
}

/// Groups of edits with little between them, with their context.
fn grouped(edits: &[Edit]) -> Vec<Vec<Edit>> {
    let mut edits = edits.to_vec();
    if let Some(first) = edits.first_mut().filter(|edit| edit.equal) {
        first.old.0 = first.old.0.max(first.old.1.saturating_sub(CONTEXT));
        first.new.0 = first.new.0.max(first.new.1.saturating_sub(CONTEXT));
    }
    if let Some(last) = edits.last_mut().filter(|edit| edit.equal) {
        last.old.1 = last.old.1.min(last.old.0 + CONTEXT);
        last.new.1 = last.new.1.min(last.new.0 + CONTEXT);
    }
    let (mut groups, mut group) = (Vec::new(), Vec::new());
    for edit in edits {
        if edit.equal && edit.old.1 - edit.old.0 > 2 * CONTEXT {
            group.push(Edit {
                equal: true,
                old: (edit.old.0, edit.old.0 + CONTEXT),
                new: (edit.new.0, edit.new.0 + CONTEXT),
            });
            groups.push(std::mem::take(&mut group));
            group.push(Edit {
                equal: true,
                old: (edit.old.1 - CONTEXT, edit.old.1),
                new: (edit.new.1 - CONTEXT, edit.new.1),
            });
            continue;
        }
        group.push(edit);
    }
    groups.push(group);
    groups.retain(|group| group.iter().any(|edit| !edit.equal));
    groups
}

/// Blocks of equal lines, in order: where they start in both, and how long they are. The last is empty.
fn matches(old: &[&str], new: &[&str]) -> Vec<(usize, usize, usize)> {
    let mut places = BTreeMap::<&str, Vec<usize>>::new();
    for (index, line) in new.iter().enumerate() {
        places.entry(line).or_default().push(index);
    }
    if new.len() >= LONG {
        let frequent = new.len() / 100 + 1;
        places.retain(|_, indices| indices.len() <= frequent);
    }
    let mut found = BTreeSet::new();
    let mut open = vec![(0, old.len(), 0, new.len())];
    while let Some((a, a_end, b, b_end)) = open.pop() {
        let (i, j, size) = longest(old, new, &places, (a, a_end, b, b_end));
        if size > 0 {
            found.insert((i, j, size));
            open.push((a, i, b, j));
            open.push((i + size, a_end, j + size, b_end));
        }
    }
    let mut joined: Vec<(usize, usize, usize)> = Vec::new();
    for (i, j, size) in found {
        match joined.last_mut() {
            Some(last) if last.0 + last.2 == i && last.1 + last.2 == j => last.2 += size,
            _ => joined.push((i, j, size)),
        }
    }
    joined.push((old.len(), new.len(), 0));
    joined
}

/// The longest block of equal lines within bounds; of several the first.
fn longest(
    old: &[&str],
    new: &[&str],
    places: &BTreeMap<&str, Vec<usize>>,
    (a, a_end, b, b_end): (usize, usize, usize, usize),
) -> (usize, usize, usize) {
    let mut best = (a, b, 0);
    // How long the block is that ends at this line of the old text and at each line of the new.
    let mut lengths = BTreeMap::<usize, usize>::new();
    for (i, line) in old.iter().enumerate().take(a_end).skip(a) {
        let mut next = BTreeMap::new();
        for &j in places.get(line).into_iter().flatten().filter(|j| (b..b_end).contains(j)) {
            let length = j.checked_sub(1).and_then(|before| lengths.get(&before)).copied().unwrap_or(0) + 1;
            next.insert(j, length);
            if length > best.2 {
                best = (i + 1 - length, j + 1 - length, length);
            }
        }
        lengths = next;
    }
    // Frequent lines beside it belong to it.
    let (mut i, mut j, mut size) = best;
    while i > a && j > b && old[i - 1] == new[j - 1] {
        (i, j, size) = (i - 1, j - 1, size + 1);
    }
    while i + size < a_end && j + size < b_end && old[i + size] == new[j + size] {
        size += 1;
    }
    (i, j, size)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differences_have_three_lines_of_context() {
        assert_eq!(unified("a\nb", "a\nb"), "");
        assert_eq!(
            unified("a\nb\nc\nd\ne\nf", "a\nb\nc\nd\nx\nf"),
            "@@ -2,5 +2,5 @@\n b\n c\n d\n-e\n+x\n f\n"
        );
        assert_eq!(unified("a\nb", "a\nx\ny\nb"), "@@ -1,2 +1,4 @@\n a\n+x\n+y\n b\n");
        let long: Vec<String> = (0..20).map(|line| line.to_string()).collect();
        let mut changed = long.clone();
        changed[2] = "x".to_owned();
        changed[17] = "y".to_owned();
        let expected = "@@ -1,6 +1,6 @@\n 0\n 1\n-2\n+x\n 3\n 4\n 5\n@@ -15,6 +15,6 @@\n 14\n 15\n 16\n-17\n+y\n 18\n 19\n";
        assert_eq!(unified(&long.join("\n"), &changed.join("\n")), expected);
    }

    #[test]
    fn frequent_lines_of_long_texts_do_not_lead() {
        let old = "}\n".repeat(150) + &(0..100).map(|line| line.to_string() + "\n").collect::<String>();
        let new = old.replace("\n50\n", "\n50\nnew\n");
        assert_eq!(unified(&old, &new), "@@ -199,6 +199,7 @@\n 48\n 49\n 50\n+new\n 51\n 52\n 53\n");
    }
}
