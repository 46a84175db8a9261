//! What going through texts costs, by the factors of `k8s.io/apiserver/pkg/cel/limits.go` and cel-go's `common`: the same for what is estimated before and
//! counted while an expression runs.

/// What a character of a text costs (`StringTraversalCostFactor`).
pub(super) const CHARACTER: f64 = 0.1;
/// What a character of a pattern multiplies that by (`RegexStringLengthCostFactor`).
pub(super) const PATTERN: f64 = 0.25;
/// The longest pattern behind a named format (`MaxNameFormatRegexSize`).
pub(super) const NAMED_FORMAT: u64 = 128;

/// Saturates; rounds up, as upstream does.
pub(super) fn times(size: u64, factor: f64) -> u64 {
    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "as upstream"
    )]
    let product = (size as f64 * factor).ceil() as u64;
    product
}

/// What looking for a regular expression costs; one more than the text has, so that it is never nothing.
pub(super) fn searching(text: u64, pattern: u64) -> u64 {
    times(text.saturating_add(1), CHARACTER).saturating_mul(times(pattern, PATTERN))
}
