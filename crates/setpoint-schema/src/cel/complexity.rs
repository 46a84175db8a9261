//! How deep an expression may be: parser and interpreter recurse, and a process whose stack overflows is gone.

/// The deepest nesting of brackets (cel-go: 250 levels, within a larger stack).
const MAX_NESTING: usize = 96;
/// The most operators of an expression: a chain of them is as deep as it is long.
const MAX_OPERATORS: usize = 2000;
/// The most characters of an expression, as in cel-go.
const MAX_LENGTH: usize = 100_000;

/// Refuses an expression that is too long or too deep, without parsing it: what is in strings does not count.
pub(super) fn check(expression: &str) -> Result<(), String> {
    let length = expression.chars().count();
    if length > MAX_LENGTH {
        return Err(format!("expression code point size exceeds limit: size: {length}, limit {MAX_LENGTH}"));
    }
    let (mut nesting, mut operators) = (0_usize, 0_usize);
    let mut rest = expression.char_indices();
    let mut last = ' ';
    while let Some((at, c)) = rest.next() {
        // `==`, `&&` and the like are one operator.
        let second = matches!((last, c), ('=' | '!' | '<' | '>', '=') | ('&', '&') | ('|', '|'));
        last = if second { ' ' } else { c };
        match c {
            _ if second => {}
            '"' | '\'' => {
                let end = end_of_string(expression, at, c);
                while rest.as_str().len() > expression.len() - end {
                    rest.next();
                }
            }
            '(' | '[' | '{' => {
                nesting += 1;
                operators += 1;
            }
            ')' | ']' | '}' => nesting = nesting.saturating_sub(1),
            '+' | '-' | '*' | '/' | '%' | '!' | '<' | '>' | '=' | '&' | '|' | '?' | '.' => operators += 1,
            _ => {}
        }
        if nesting > MAX_NESTING {
            return Err(format!("expression nested deeper than {MAX_NESTING} levels"));
        }
        if operators > MAX_OPERATORS {
            return Err(format!("expression has more than {MAX_OPERATORS} operators"));
        }
    }
    Ok(())
}

/// Where the string ends that begins at `start` with `quote`. A raw string (`r'\'`) knows no escapes, and three quotes end
/// only at three. One that does not end is left to the parser to report: it reaches to the end.
fn end_of_string(expression: &str, start: usize, quote: char) -> usize {
    let before = &expression[..start];
    let raw = before.ends_with(['r', 'R']);
    let triple = quote.to_string().repeat(3);
    let body = &expression[start..];
    let delimiter = if body.starts_with(&triple) { triple.as_str() } else { &triple[..1] };
    let mut at = start + delimiter.len();
    while let Some(c) = expression[at..].chars().next() {
        if expression[at..].starts_with(delimiter) {
            return at + delimiter.len();
        }
        at += c.len_utf8();
        if c == '\\' && !raw {
            at += expression[at..].chars().next().map_or(0, char::len_utf8);
        }
    }
    expression.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_would_recurse_without_end_is_refused() {
        let n = 20_000;
        for expression in [
            format!("{}true{}", "(".repeat(n), ")".repeat(n)),
            format!("{}{} == []", "[".repeat(n), "]".repeat(n)),
            format!("{}true", "!".repeat(n)),
            format!("{}1 < 0", "-".repeat(n)),
            format!("self{} == 1", ".a".repeat(n)),
            format!("self.l{} == 1", "[0]".repeat(n)),
            vec!["true"; n].join(" && "),
            vec!["1"; n].join(" + "),
            format!("{}true{}", "true?".repeat(n), ":false".repeat(n)),
            format!("'' + {}", "f(".repeat(n)),
            "x".repeat(n * 6),
        ] {
            check(&expression).unwrap_err();
        }
    }

    #[test]
    fn strings_do_not_count() {
        let brackets = "(".repeat(5000);
        for expression in [
            format!("self == '{brackets}'"),
            format!("self == \"\\\"{brackets}\""),
            format!("self == r'\\' && self != '{brackets}'"),
            format!("self == \'\'\'it\'s {brackets}\'\'\'"),
        ] {
            check(&expression).unwrap();
        }
        check(&format!("'a' + {brackets}")).unwrap_err();
    }
}
