"""A URL that two parsers could read differently is refused; what is left has one meaning."""

from __future__ import annotations

import pytest

from app.media_url import MediaUrlError, is_allowed, join_location, parse_host_rule, parse_media_url


@pytest.mark.parametrize(
    ("url", "scheme", "host", "port", "target", "authority"),
    [
        ("https://example.com/v.mp4", "https", "example.com", 443, "/v.mp4", "example.com"),
        ("HTTP://Example.COM:80/V.mp4?x=1&y=%2F@", "http", "example.com", 80, "/V.mp4?x=1&y=%2F@", "example.com"),
        ("https://a-b.example.com:8443", "https", "a-b.example.com", 8443, "/", "a-b.example.com:8443"),
        ("https://example.com?v=1", "https", "example.com", 443, "/?v=1", "example.com"),
        ("http://8.8.8.8/v", "http", "8.8.8.8", 80, "/v", "8.8.8.8"),
        ("http://[2606:2800::1]:81/v", "http", "2606:2800::1", 81, "/v", "[2606:2800::1]:81"),
        ("https://xn--bcher-kva.example/", "https", "xn--bcher-kva.example", 443, "/", "xn--bcher-kva.example"),
        ("https://my_b.s3.example.com/k", "https", "my_b.s3.example.com", 443, "/k", "my_b.s3.example.com"),
    ],
)  # fmt: skip
def test_one_meaning(url: str, scheme: str, host: str, port: int, target: str, authority: str) -> None:
    parsed = parse_media_url(url)
    assert (parsed.scheme, parsed.host, parsed.port, parsed.target, parsed.authority) == (
        scheme, host, port, target, authority,
    )  # fmt: skip


REFUSED = [
    # user names, and what makes one parser see one
    "http://example.com@127.0.0.1/", "http://user:pass@example.com/", "http://example.com\\@127.0.0.1/",
    "http://example.com#@127.0.0.1/", "http://127.0.0.1#@example.com/", "http://example.com%40127.0.0.1/",
    "http:///example.com/", "http:example.com/", "http:/example.com/", "http://@example.com/", "http://:80/",
    # addresses in other spellings
    "http://2130706433/", "http://0x7f000001/", "http://0x7f.1/", "http://0177.0.0.1/", "http://127.1/", "http://127.0.1/",
    "http://0/", "http://127.0.0.1./", "http://127.0.0.01/", "http://0x7f.0x0.0x0.0x1/", "http://1.2.3.4.5/",
    "http://256.1.1.1/", "http://127。0。0。1/", "http://①②⑦.0.0.1/", "http://[::ffff:127.0.0.1]/", "http://[0:0::1]/",
    "http://[::1%25eth0]/", "http://[::1%lo]/", "http://[fe80::1%1]/", "http://[::1/", "http://::1/", "http://[]/",
    "http://[v1.x]/", "http://[::1].example.com/",
    # hosts that are none
    "http://example.com./", "http://.example.com/", "http://example..com/", "http://-a.example/", "http://a-.example/",
    "http://" + "a" * 64 + ".com/", "http://" + "a." * 127 + "com/", "http://exa mple.com/", "http://bücher.example/",
    "http://example.com%00.evil/", "http://example.com%2f.evil/", "http://*.example.com/", "http://a,b/",
    # ports
    "http://example.com:0/", "http://example.com:65536/", "http://example.com:/", "http://example.com:80:80/",
    "http://example.com:8o/", "http://example.com:+80/", "http://example.com:-1/", "http://example.com:999999999/",
    # control characters, line breaks that would end a header, spaces at the ends
    "http://example.com/\r\nHost: evil", "http://example.com/\n", "http://example.com/\0", "http://example.com/\t",
    " http://example.com/", "http://example.com/ ", "ht\ntp://example.com/", "http://example.com/\x7f", "http://example.com/é",
    # fragments, other schemes, nothing
    "http://example.com/v.mp4#t=10", "http://example.com/#", "ftp://example.com/", "file:///etc/passwd", "gopher://a/",
    "https+unix://a/", "//example.com/", "example.com/v.mp4", "", "http://", "https:///", "jar:http://example.com/",
    "http://example.com/" + "a" * 9000,
]  # fmt: skip


@pytest.mark.parametrize("url", REFUSED)
def test_refused(url: str) -> None:
    """The reason never repeats the URL, which may hold a password."""
    with pytest.raises(MediaUrlError) as caught:
        parse_media_url(url)
    assert "127" not in str(caught.value) and "evil" not in str(caught.value)


@pytest.mark.parametrize(
    ("rule", "allowed", "refused"),
    [
        ("example.com", ["https://example.com/", "http://example.com:80/", "https://EXAMPLE.com:443/"],
         ["https://a.example.com/", "https://example.com:8443/", "http://example.com:443/", "https://example.co/",
          "https://notexample.com/", "https://example.com.evil.net/"]),
        (".example.com", ["https://a.example.com/", "https://a.b.example.com/"],
         ["https://example.com/", "https://notexample.com/", "https://a.example.com.evil/"]),
        ("example.com:8443", ["https://example.com:8443/"], ["https://example.com/", "https://example.com:8444/"]),
        ("8.8.8.8", ["http://8.8.8.8/"], ["http://8.8.8.9/"]),
        ("[2606:2800::1]:81", ["http://[2606:2800::1]:81/"], ["http://[2606:2800::1]/"]),
    ],
)  # fmt: skip
def test_rules(rule: str, allowed: list[str], refused: list[str]) -> None:
    """A host is itself or, with a dot before it, all below it; other ports of it are other servers."""
    rules = [parse_host_rule("other.example"), parse_host_rule(rule)]
    assert [url for url in allowed if not is_allowed(parse_media_url(url), rules)] == []
    assert [url for url in refused if is_allowed(parse_media_url(url), rules)] == []


@pytest.mark.parametrize(
    "rule", ["", ".", "*", "*.example.com", "https://a.b", "a.b/", "a b", "127.1", ".8.8.8.8", "a:b"]
)
def test_rules_that_are_none(rule: str) -> None:
    with pytest.raises(ValueError, match="is not a host"):
        parse_host_rule(rule)


@pytest.mark.parametrize(
    ("location", "where"),
    [
        ("/other", "https://example.com:8443/other"),
        ("next?x=1", "https://example.com:8443/dir/next?x=1"),
        ("//cdn.example/v", "https://cdn.example/v"),
        ("https://cdn.example/v", "https://cdn.example/v"),
    ],
)
def test_redirects_are_read_against_where_they_stand(location: str, where: str) -> None:
    assert join_location(parse_media_url("https://example.com:8443/dir/v"), location) == parse_media_url(where)


@pytest.mark.parametrize(
    "location",
    ["http://example.com/", "file:///etc/passwd", "gopher://x/", "http://\\@127.0.0.1/", "https://a@b/", "\\\\evil/",
     "/\r\nx: y",      "https://127.1/", "data:video/mp4;base64,AAAA", "//[::1%25lo]/"],
)  # fmt: skip
def test_redirects_are_as_strict_as_urls(location: str) -> None:
    """And never step down from https to http."""
    with pytest.raises(MediaUrlError):
        join_location(parse_media_url("https://example.com/"), location)
