//! The types of expressions, and which of them functions take: what cel-go's checker refuses before anything runs.
//!
//! Nothing is refused on a guess: what a function that is not listed here gives fits everywhere.

use std::fmt;
use std::rc::Rc;

use crate::schema::{Additional, Schema, Type};

/// The type of an expression.
#[derive(Clone, Debug)]
pub(super) enum Ty {
    /// Any: it shows when it is there.
    Dyn,
    /// Not known here.
    Unknown,
    Bool,
    Int,
    Uint,
    Double,
    Text,
    Bytes,
    Null,
    Timestamp,
    Duration,
    List(Rc<Ty>),
    Map(Rc<Ty>, Rc<Ty>),
    /// An object with the fields of a schema, and what it is called.
    Object(Schema, Rc<str>),
    Optional(Rc<Ty>),
    /// A type of some library.
    Named(&'static str),
}

use Ty::{
    Bool, Bytes, Double, Duration, Dyn, Int, List, Map, Named, Null, Object, Optional, Text, Timestamp, Uint,
    Unknown,
};

impl fmt::Display for Ty {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Dyn | Unknown => f.write_str("dyn"),
            Bool => f.write_str("bool"),
            Int => f.write_str("int"),
            Uint => f.write_str("uint"),
            Double => f.write_str("double"),
            Text => f.write_str("string"),
            Bytes => f.write_str("bytes"),
            Null => f.write_str("null"),
            Timestamp => f.write_str("timestamp"),
            Duration => f.write_str("duration"),
            List(item) => write!(f, "list({item})"),
            Map(key, value) => write!(f, "map({key}, {value})"),
            Object(_, name) => f.write_str(name),
            Optional(of) => write!(f, "optional_type({of})"),
            Named(name) => f.write_str(name),
        }
    }
}

impl Ty {
    /// The type of values of a schema; objects are called `name` and what is in them by their path.
    pub(super) fn of(schema: &Schema, name: &str) -> Self {
        let node = &schema.node;
        if node.int_or_string {
            return Dyn;
        }
        match node.kind {
            None => Dyn,
            Some(Type::Boolean) => Bool,
            Some(Type::Integer) => Int,
            Some(Type::Number) => Double,
            Some(Type::String) => match node.format.as_deref() {
                Some("byte") => Bytes,
                Some("date" | "date-time") => Timestamp,
                Some("duration") => Duration,
                _ => Text,
            },
            Some(Type::Array) => List(Rc::new(Self::of(schema.item(), &format!("{name}.@idx")))),
            Some(Type::Object) => match &node.additional {
                Additional::Schema(child) => {
                    Map(Rc::new(Text), Rc::new(Self::of(child.schema(), &format!("{name}.@elem"))))
                }
                Additional::Allowed => Map(Rc::new(Text), Rc::new(Unknown)),
                // Nothing is said about its fields.
                _ if node.preserve_unknown && node.properties.is_empty() => Unknown,
                _ => Object(schema.clone(), name.into()),
            },
        }
    }

    /// Whether something is not known: nothing is said about it then.
    pub(super) fn is_unsure(&self) -> bool {
        match self {
            Unknown => true,
            List(of) | Optional(of) => of.is_unsure(),
            Map(key, value) => key.is_unsure() || value.is_unsure(),
            _ => false,
        }
    }

    pub(super) fn is_any(&self) -> bool {
        matches!(self, Dyn | Unknown)
    }

    /// The kind of schema that its values have; `None` where it shows at run time.
    pub(super) fn kind(&self) -> Option<Type> {
        Some(match self {
            Bool => Type::Boolean,
            Int => Type::Integer,
            Double => Type::Number,
            Text => Type::String,
            List(_) => Type::Array,
            Map(..) | Object(..) => Type::Object,
            _ => return None,
        })
    }

    /// Whether values of both types can be compared and stand in for each other.
    pub(super) fn fits(&self, other: &Self) -> bool {
        match (self, other) {
            (List(one), List(other)) | (Optional(one), Optional(other)) => one.fits(other),
            (Map(key, value), Map(other_key, other)) => key.fits(other_key) && value.fits(other),
            (Object(_, one), Object(_, other)) => one == other,
            (Named(one), Named(other)) => one == other,
            // Messages may be missing.
            (Null, other) | (other, Null) => {
                matches!(other, Null | Object(..) | Timestamp | Duration | Named(_) | Optional(_))
                    || other.is_any()
            }
            (one, other) => {
                one.is_any() || other.is_any() || std::mem::discriminant(one) == std::mem::discriminant(other)
            }
        }
    }

    /// The more telling one of two that fit.
    pub(super) fn join(self, other: Self) -> Self {
        match self {
            Unknown | Null => other,
            Dyn => Dyn,
            List(item) if item.is_any() => other,
            known => known,
        }
    }
}

/// What a call gives: a type, or that no overload takes these operands.
pub(super) enum Called {
    Gives(Ty),
    NoOverload,
}

use Called::{Gives, NoOverload};

fn gives(fits: bool, ty: Ty) -> Called {
    if fits { Gives(ty) } else { NoOverload }
}

fn is_number(ty: &Ty) -> bool {
    matches!(ty, Int | Uint | Double) || ty.is_any()
}

fn is_ordered(ty: &Ty) -> bool {
    matches!(ty, Int | Uint | Double | Bool | Text | Bytes | Timestamp | Duration) || ty.is_any()
}

fn list_of(item: Ty) -> Ty {
    List(Rc::new(item))
}

/// What an operator gives.
pub(super) fn operator(name: &str, operands: &[Ty]) -> Called {
    match (name, operands) {
        ("_==_" | "_!=_", [one, other]) => gives(one.fits(other), Bool),
        ("_<_" | "_<=_" | "_>_" | "_>=_", [one, other]) => {
            let fits = is_ordered(one) && is_ordered(other);
            gives(fits && (one.fits(other) || is_number(one) && is_number(other)), Bool)
        }
        ("!_", [one]) => gives(one.fits(&Bool), Bool),
        ("-_", [one]) => gives(matches!(one, Int | Double) || one.is_any(), one.clone()),
        ("_+_", [one, other]) => match (one, other) {
            (Timestamp, Duration) | (Duration, Timestamp) => Gives(Timestamp),
            (Int | Uint | Double | Text | Bytes | Duration | List(_), _) if one.fits(other) => {
                Gives(if other.is_any() && !matches!(one, Duration) {
                    one.clone()
                } else {
                    one.clone().join(other.clone())
                })
            }
            (Dyn | Unknown, _) => Gives(Unknown),
            (Timestamp, other) if other.is_any() => Gives(Timestamp),
            _ => NoOverload,
        },
        ("_-_", [one, other]) => match (one, other) {
            (Timestamp, Timestamp) => Gives(Duration),
            (Timestamp, Duration) => Gives(Timestamp),
            (Int | Uint | Double | Duration, _) if one.fits(other) => Gives(one.clone()),
            (Dyn | Unknown, _) => Gives(Unknown),
            (Timestamp, other) if other.is_any() => Gives(Unknown),
            _ => NoOverload,
        },
        ("_*_" | "_/_", [one, other]) => match one {
            Int | Uint | Double => gives(one.fits(other), one.clone()),
            Dyn | Unknown => Gives(Unknown),
            _ => NoOverload,
        },
        ("_%_", [one, other]) => match one {
            Int | Uint => gives(one.fits(other), one.clone()),
            Dyn | Unknown => Gives(Unknown),
            _ => NoOverload,
        },
        ("@in", [one, other]) => match other {
            List(item) => gives(one.fits(item), Bool),
            Map(key, _) => gives(one.fits(key), Bool),
            other => gives(other.is_any(), Bool),
        },
        ("_[_]", [one, index]) => match one {
            List(item) => gives(index.fits(&Int), (**item).clone()),
            Map(key, value) => gives(index.fits(key), (**value).clone()),
            Optional(_) => Gives(Unknown),
            other => gives(other.is_any(), Unknown),
        },
        ("_?_:_", [condition, one, other]) => {
            gives(condition.fits(&Bool) && one.fits(other), one.clone().join(other.clone()))
        }
        _ => Gives(Unknown),
    }
}

/// What a function gives: `on` is what it is called on.
pub(super) fn function(name: &str, on: Option<&Ty>, arguments: &[Ty]) -> Called {
    let all = |wanted: &[Ty]| {
        arguments.len() == wanted.len()
            && arguments.iter().zip(wanted).all(|(given, wanted)| given.fits(wanted))
    };
    let text = on.is_some_and(|on| on.fits(&Text));
    let one = |fits: fn(&Ty) -> bool| on.is_none() && matches!(arguments, [one] if one.is_any() || fits(one));
    match name {
        "size" => {
            let sized = |ty: &Ty| matches!(ty, Text | Bytes | List(_) | Map(..)) || ty.is_any();
            let fits = match (on, arguments) {
                (Some(on), []) => sized(on),
                (None, [one]) => sized(one),
                _ => false,
            };
            gives(fits, Int)
        }
        "startsWith" | "endsWith" | "contains" if on.is_some() => gives(text && all(&[Text]), Bool),
        "matches" => gives(if on.is_some() { text && all(&[Text]) } else { all(&[Text, Text]) }, Bool),
        "lowerAscii" | "upperAscii" | "trim" if on.is_some() => gives(text && arguments.is_empty(), Text),
        "charAt" if on.is_some() => gives(text && all(&[Int]), Text),
        "substring" if on.is_some() => gives(text && (all(&[Int]) || all(&[Int, Int])), Text),
        "replace" if on.is_some() => gives(text && (all(&[Text, Text]) || all(&[Text, Text, Int])), Text),
        "split" if on.is_some() => gives(text && (all(&[Text]) || all(&[Text, Int])), list_of(Text)),
        "join" if on.is_some() => {
            let fits = on.is_some_and(|on| on.fits(&list_of(Text)));
            gives(fits && (arguments.is_empty() || all(&[Text])), Text)
        }
        "indexOf" | "lastIndexOf" => match on {
            Some(List(item)) => gives(all(&[(**item).clone()]), Int),
            Some(_) => gives(text && (all(&[Text]) || all(&[Text, Int])), Int),
            None => Gives(Unknown),
        },
        "isSorted" | "min" | "max" => match (on, arguments) {
            (Some(List(item)), []) => {
                let gets = if name == "isSorted" { Bool } else { (**item).clone() };
                gives(is_ordered(item), gets)
            }
            (Some(on), []) => gives(on.is_any(), Unknown),
            _ => Gives(Unknown),
        },
        "sum" => match (on, arguments) {
            (Some(List(item)), []) => gives(is_number(item) || matches!(**item, Duration), (**item).clone()),
            (Some(on), []) => gives(on.is_any(), Unknown),
            _ => Gives(Unknown),
        },
        "int" => gives(one(|ty| matches!(ty, Int | Uint | Double | Text | Timestamp | Duration)), Int),
        "uint" => gives(one(|ty| matches!(ty, Int | Uint | Double | Text)), Uint),
        "double" => gives(one(|ty| matches!(ty, Int | Uint | Double | Text)), Double),
        "bool" => gives(one(|ty| matches!(ty, Bool | Text)), Bool),
        "bytes" => gives(one(|ty| matches!(ty, Bytes | Text)), Bytes),
        "string" => {
            let printed = |ty: &Ty| {
                matches!(ty, Bool | Bytes | Double | Duration | Int | Text | Timestamp | Uint | Named(_))
            };
            gives(one(printed), Text)
        }
        "duration" => {
            gives(one(|ty| matches!(ty, Text | Duration | Int)) && !arguments[0].fits(&Int), Duration)
        }
        "timestamp" => gives(one(|ty| matches!(ty, Text | Timestamp | Int)), Timestamp),
        "dyn" if on.is_none() => Gives(Dyn),
        "quantity" => gives(all(&[Text]), Named("kubernetes.Quantity")),
        "url" => gives(all(&[Text]), Named("kubernetes.URL")),
        "ip" if on.is_none() => gives(all(&[Text]), Named("net.IP")),
        "cidr" if on.is_none() => gives(all(&[Text]), Named("net.CIDR")),
        "isQuantity" | "isURL" | "isIP" | "isCIDR" if on.is_none() => gives(all(&[Text]), Bool),
        "semver" if on.is_none() => match arguments {
            [version] => gives(version.fits(&Text), Named("kubernetes.Semver")),
            _ => Gives(Named("kubernetes.Semver")),
        },
        "isGreaterThan" | "isLessThan" | "compareTo" => match on {
            Some(on @ Named(_)) => {
                gives(all(std::slice::from_ref(on)), if name == "compareTo" { Int } else { Bool })
            }
            _ => Gives(Unknown),
        },
        "orValue" => match (on, arguments) {
            (Some(Optional(of)), [other]) => gives(of.fits(other), (**of).clone().join(other.clone())),
            _ => Gives(Unknown),
        },
        "value" => match on {
            Some(Optional(of)) => Gives((**of).clone()),
            _ => Gives(Unknown),
        },
        "hasValue" | "@not_strictly_false" | "allowed" | "errored" => Gives(Bool),
        "reason" => Gives(Text),
        _ => Gives(Unknown),
    }
}
