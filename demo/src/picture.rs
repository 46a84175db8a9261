//! Draws what the terminal showed as an SVG picture, for the README.

use std::fmt::Write;

const LINE_HEIGHT: usize = 19;
const CHARACTER_WIDTH: usize = 8;
const MARGIN: usize = 16;
/// Longer lines are wrapped.
const COLUMNS: usize = 100;

/// The picture of a terminal with these lines.
pub(crate) fn svg(command: &str, lines: &[String]) -> String {
    let lines: Vec<_> = lines.iter().flat_map(|line| wrap(line)).collect();
    let longest = lines.iter().map(|line| line.chars().count()).max().unwrap_or_default().max(80);
    let width = longest * CHARACTER_WIDTH + 2 * MARGIN;
    let height = (lines.len() + 2) * LINE_HEIGHT + 2 * MARGIN;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" viewBox=\"0 0 {width} {height}\">\n\
         <rect width=\"100%\" height=\"100%\" rx=\"8\" fill=\"#15181e\"/>\n\
         <g font-family=\"ui-monospace, SFMono-Regular, Menlo, Consolas, monospace\" font-size=\"13\" fill=\"#d5d9e0\" \
         xml:space=\"preserve\">\n"
    );
    let mut row = |number: usize, colour: Option<&str>, text: &str| {
        let y = MARGIN + (number + 1) * LINE_HEIGHT;
        let fill = colour.map(|colour| format!(" fill=\"{colour}\"")).unwrap_or_default();
        // Writing into a String cannot fail.
        let _ = writeln!(svg, "<text x=\"{MARGIN}\" y=\"{y}\"{fill}>{}</text>", escape(text));
    };
    row(0, Some("#8fb4ff"), &format!("$ {command}"));
    for (number, line) in lines.iter().enumerate() {
        let colour = match line.chars().next() {
            Some('✔') => Some("#8fd48f"),
            Some('✘') => Some("#ff8f8f"),
            Some(' ') => Some("#9aa3b2"),
            _ => None,
        };
        row(number + 1, colour, line);
    }
    svg.push_str("</g>\n</svg>\n");
    svg
}

/// Breaks a line at blanks; what follows is indented like its beginning.
fn wrap(line: &str) -> Vec<String> {
    let indent = " ".repeat(line.chars().take_while(|&c| c == ' ').count());
    let (mut lines, mut current) = (Vec::new(), String::new());
    for word in line.split_inclusive(' ') {
        let full = current.chars().count() + word.trim_end().chars().count() > COLUMNS;
        if full && !current.trim().is_empty() {
            lines.push(std::mem::replace(&mut current, indent.clone()));
        }
        current.push_str(word);
    }
    lines.push(current);
    lines
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_lines_are_wrapped_with_their_indent() {
        let line = format!("  {}", "word ".repeat(30).trim_end());
        let lines = wrap(&line);
        assert_eq!(lines.len(), 2, "{lines:?}");
        assert!(lines.iter().all(|line| line.starts_with("  word") && line.trim_end().len() <= COLUMNS));
        assert_eq!(wrap(""), [""]);
        assert_eq!(wrap("name   ok").concat(), "name   ok");
    }

    #[test]
    fn text_is_escaped() {
        let picture = svg("make demo", &["✔ a < b & c".to_owned()]);
        assert!(picture.contains("✔ a &lt; b &amp; c") && picture.ends_with("</svg>\n"), "{picture}");
    }
}
