//! Schedules of cron jobs, as the library `robfig/cron` reads them.

/// A field's name, least and most number, and the names of its numbers from the least on.
type Field = (i64, i64, &'static [&'static str]);

const FIELDS: [Field; 5] = [
    (0, 59, &[]),
    (0, 23, &[]),
    (1, 31, &[]),
    (1, 12, &["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"]),
    (0, 6, &["sun", "mon", "tue", "wed", "thu", "fri", "sat"]),
];
const DESCRIPTORS: [&str; 7] =
    ["@yearly", "@annually", "@monthly", "@weekly", "@daily", "@midnight", "@hourly"];

/// What is wrong with a schedule.
pub fn check(schedule: &str) -> Result<(), String> {
    if let Some(duration) = schedule.strip_prefix("@every ") {
        let units =
            |text: &str| text.ends_with(['s', 'm', 'h']) && text.starts_with(|c: char| c.is_ascii_digit());
        return if units(duration) {
            Ok(())
        } else {
            Err(format!("failed to parse duration {schedule}: time: invalid duration {duration:?}"))
        };
    }
    if schedule.starts_with('@') {
        let known = DESCRIPTORS.contains(&schedule);
        return if known { Ok(()) } else { Err(format!("unrecognized descriptor: {schedule}")) };
    }
    let given: Vec<&str> = schedule.split_whitespace().collect();
    if given.len() != FIELDS.len() {
        return Err(format!("expected exactly 5 fields, found {}: [{}]", given.len(), given.join(" ")));
    }
    given
        .iter()
        .zip(FIELDS)
        .try_for_each(|(text, field)| text.split(',').try_for_each(|range| check_range(range, field)))
}

fn check_range(text: &str, (least, most, names): Field) -> Result<(), String> {
    let parts: Vec<&str> = text.split('/').collect();
    let bounds: Vec<&str> = parts[0].split('-').collect();
    let number = |text: &str| match names.iter().position(|name| text.eq_ignore_ascii_case(name)) {
        Some(index) => Ok(least + i64::try_from(index).unwrap_or(0)),
        None => parse(text),
    };
    let (start, mut end) = match bounds.as_slice() {
        ["*" | "?"] => (least, most),
        [one] => (number(one)?, number(one)?),
        [start, end] => (number(start)?, number(end)?),
        _ => return Err(format!("too many hyphens: {text}")),
    };
    let step = match parts.as_slice() {
        [_] => 1,
        [_, step] => {
            if bounds.len() == 1 && !matches!(bounds[0], "*" | "?") {
                end = most;
            }
            parse(step)?
        }
        _ => return Err(format!("too many slashes: {text}")),
    };
    if start < least {
        return Err(format!("beginning of range ({start}) below minimum ({least}): {text}"));
    }
    if end > most {
        return Err(format!("end of range ({end}) above maximum ({most}): {text}"));
    }
    if start > end {
        return Err(format!("beginning of range ({start}) beyond end of range ({end}): {text}"));
    }
    if step == 0 {
        return Err(format!("step of range should be a positive number: {text}"));
    }
    Ok(())
}

fn parse(text: &str) -> Result<i64, String> {
    let number: i64 = text.parse().map_err(|_| {
        format!("failed to parse int from {text}: strconv.Atoi: parsing {text:?}: invalid syntax")
    })?;
    if number < 0 { Err(format!("negative number ({number}) not allowed: {text}")) } else { Ok(number) }
}

#[cfg(test)]
mod tests {
    use super::check;

    #[test]
    fn schedules_are_read_as_the_controller_reads_them() {
        for good in ["*/5 * * * *", "0 0 1 JAN-mar mon,fri", "@hourly", "@every 5m", "10/20 ? 1-5/2 * 0"] {
            assert_eq!(check(good), Ok(()), "{good}");
        }
        for (bad, why) in [
            ("* * * *", "expected exactly 5 fields, found 4: [* * * *]"),
            ("61 0 * * *", "end of range (61) above maximum (59): 61"),
            ("0 0 0 * *", "beginning of range (0) below minimum (1): 0"),
            ("0 0 * */0 *", "step of range should be a positive number: */0"),
            ("@sometimes", "unrecognized descriptor: @sometimes"),
        ] {
            assert_eq!(check(bad), Err(why.to_owned()), "{bad}");
        }
    }
}
