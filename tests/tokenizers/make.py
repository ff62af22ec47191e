# Makes the tokenizers of this folder and what they must give (expected.json), by the libraries that
# define them: python3 with `tokenizers` and `sentencepiece`. The texts trained on are this project's
# own pages and the lines below.
#
#   python3 tests/tokenizers/make.py
#
# bytes.json    byte-level BPE with the splitting pattern and settings of Llama-3
# gpt2.json     byte-level BPE with the pattern that ByteLevel has by itself
# marks.model   BPE of characters with byte fallback (sentencepiece), no normalisation, as MiniCPM's
# marks.json    the same as a tokenizer.json
# squeeze.model the same with superfluous blanks removed
import glob, io, json, os, random, re

import sentencepiece as spm
import sentencepiece.sentencepiece_model_pb2 as pb
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

here = os.path.dirname(os.path.abspath(__file__))
root = os.path.dirname(os.path.dirname(here))

LINES = """
Die Würde des Menschen ist unantastbar. Straße, Größe, Übermut, naïve façade, œuvre, Ångström.
Все люди рождаются свободными и равными в своём достоинстве и правах. Ёлка, объект, щука.
人人生而自由,在尊严和权利上一律平等。他们赋有理性和良心。天地玄黄,宇宙洪荒。
すべての人間は、生まれながらにして自由であり、かつ、尊厳と権利とについて平等である。カタカナ、ひらがな。
모든 인간은 태어날 때부터 자유로우며 그 존엄과 권리에 있어 동등하다.
सभी मनुष्यों को गौरव और अधिकारों के मामले में जन्मजात स्वतन्त्रता और समानता प्राप्त है।
يولد جميع الناس أحراراً متساوين في الكرامة والحقوق. ١٢٣٤٥
כל בני האדם נולדו בני חורין ושווים בערכם ובזכויותיהם.
Όλοι οι άνθρωποι γεννιούνται ελεύθεροι και ίσοι στην αξιοπρέπεια και τα δικαιώματα.
มนุษย์ทั้งหลายเกิดมามีอิสระและเสมอภาคกันในเกียรติศักดิ์และสิทธิ
Tất cả mọi người sinh ra đều được tự do và bình đẳng về nhân phẩm và quyền lợi.
for (int64_t i = 0; i < n; i++) { a[i] += b[i] * 3.14159f; } // loop
def f(x):\n\treturn {"a": [1, 22, 333, 4444, 55555], 'b': x ** 2 if x >= 0 else None}\n
SELECT name, COUNT(*) FROM t WHERE id IN (1,2,3) GROUP BY name ORDER BY 2 DESC;\r\n
I'm sure they've said we'll go, but he'd don't; it's YOU'RE, WE'LL, IT'S, I'D.
🙂 👩‍👩‍👧‍👦 🇩🇪 👍🏽 ❤️ ✨ — “quotes” ‘single’ … € £ ¥ ½ ² ³ ① Ⅷ
""".strip().split("\n")

def corpus():
    text = list(LINES) * 20
    for pattern in ("*.md", "*/*.md", "docs/*/*.md", "data/*.c", "common/*.c", "data/*.h"):
        for name in sorted(glob.glob(os.path.join(root, pattern))):
            text += io.open(name, encoding="utf-8").read().split("\n")
    return text

LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|"
          r"\s*[\r\n]+|\s+(?!\S)|\s+")

def make_bytes(name, split, ignore_merges):
    t = Tokenizer(models.BPE(ignore_merges=ignore_merges))
    if split:
        t.pre_tokenizer = pre_tokenizers.Sequence([
            pre_tokenizers.Split(Regex(LLAMA3), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    else:
        t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    t.decoder = decoders.ByteLevel()
    t.train_from_iterator(corpus(), trainers.BpeTrainer(
        vocab_size=2000, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False))
    t.add_special_tokens(["<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>"])
    t.add_tokens([AddedToken("<tool>", normalized=False), AddedToken("<tool_call>", normalized=False)])
    t.save(os.path.join(here, name), pretty=False)

def make_model(name, squeeze):
    with open("/tmp/corpus.txt", "w", encoding="utf-8") as f:
        f.write("\n".join(l for l in corpus() if l) + "\n")
    out = io.BytesIO()
    spm.SentencePieceTrainer.train(
        input="/tmp/corpus.txt", model_writer=out, model_type="bpe", vocab_size=2400, byte_fallback=True,
        character_coverage=0.998, normalization_rule_name="identity", remove_extra_whitespaces=squeeze,
        split_digits=True, allow_whitespace_only_pieces=True, add_dummy_prefix=True,
        control_symbols=["<|im_end|>", "<|im_start|>"], user_defined_symbols=["<tool>", "<tool_call>", "<b b>"],
        num_threads=1, minloglevel=2)
    open(os.path.join(here, name), "wb").write(out.getvalue())

# As the converter of the Python library does: every way to make a piece of two is a merge.
def make_json_of_model(name, source):
    m = pb.ModelProto()
    m.ParseFromString(open(os.path.join(here, source), "rb").read())
    vocab = {p.piece: i for i, p in enumerate(m.pieces)}
    merges = []
    for p in m.pieces:
        if p.type != 1:
            continue
        local = [(p.piece[:k], p.piece[k:], p.score) for k in range(1, len(p.piece))
                 if p.piece[:k] in vocab and p.piece[k:] in vocab]
        merges += sorted(local, key=lambda x: (vocab[x[0]], vocab[x[1]]))
    merges = [(a, b) for a, b, _ in sorted(merges, key=lambda x: x[2], reverse=True)]
    t = Tokenizer(models.BPE(vocab, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    t.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    t.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(),
                                   decoders.Strip(" ", 1, 0)])
    special = ["<unk>", "<s>", "</s>", "<|im_end|>", "<|im_start|>"]
    t.add_special_tokens([AddedToken(x, normalized=False) for x in special])
    t.add_tokens([AddedToken("<tool>", normalized=False), AddedToken("<tool_call>", normalized=True)])
    t.save(os.path.join(here, name), pretty=False)

def texts():
    rnd = random.Random(7)
    out = ["", " ", "  ", "   a", "a   ", " a  b   c ", "\n", "\n\n", " \n ", "\r\n\r\n  x", "\t\tx", "a\u00a0b\u3000c\u2028d\u180ee\u0085f",
           "\u2581", "a\u2581b", "\u2581\u2581 x", "x\u2581\u2581", "'s 'S 'ſ it'ſ 'RE 'Ll 'd 'D 'x", "don't I'LL we'Ve",
           "1 12 123 1234 12345 1234567890 ١٢٣٤ ½ ² Ⅷ", "a1b22c333", "!!!???...", " !!! \r\n", "#$%&'()*+,-./:;<=>?@[\\]^_`{|}~",
           "<|begin_of_text|>hello<|end_of_text|>", "<s>x</s>", "<|im_end|> <|im_start|>user", "<tool>", "<tool_call>x<tool>y", "a <tool> b",
           "<tool_cal", "<|eot_id|><|eot_id|> ", "<b b>", "x<b b>y", "<0x41>", "<unk>", "\x00\x01\x7f", "\ufeffbom", "\ufffd", "e\u0301 é",
           "👩‍👩‍👧‍👦👍🏽🇩🇪🏴󠁧󠁢󠁥󠁮󠁧󠁿", "𝔘𝔫𝔦𝔠𝔬𝔡𝔢 𠜎𠜱", "ᚠᛇᚻ ꦱꦸꦫ ∀∂∈ℝ∧∪≡∞", "ǅ ﬁ ﬀ ß ẞ İ ı ſ K",
           "a" * 300, "ab" * 100, " " * 200, "\n" * 100, "x" + " " * 40 + "y", "中" * 100, "é" * 100, "😀" * 60,
           "".join(rnd.choice("abcdefghij") for _ in range(1000)), "supercalifragilisticexpialidocious" * 10,
           "https://example.org/a/b?c=d&e=%20f#g_h-i", "/* comment */ #include <stdio.h>\nint main(void)\n{\n    return 0;\n}\n"]
    out += LINES
    src = [l for l in corpus() if l]
    for _ in range(14):
        k = rnd.randrange(len(src) - 12)
        out.append("\n".join(src[k:k + rnd.randrange(1, 12)]))
    pool = "".join(LINES) + " \n\t  ▁\u00a0\u200d\u0301<|>tool'sS019"
    for _ in range(30):
        out.append("".join(rnd.choice(pool) for _ in range(rnd.randrange(1, 120))))
    for _ in range(20):  # any characters
        out.append("".join(chr(rnd.choice([rnd.randrange(32, 0x250), rnd.randrange(0x250, 0xd7ff), rnd.randrange(0xe000, 0x1fbff)]))
                           for _ in range(rnd.randrange(1, 60))))
    # Characters that the versions of Unicode in use here classify differently stay out.
    import unicodedata
    return [t for t in dict.fromkeys(out) if all(unicodedata.category(c) != "Cn" for c in t)]

INVALID = [b"\xff", b"a\x80b", b"\xe4\xb8", b"\xe4\xb8\xad\xe4\xb8", b"\xf0\x9f\x98", b"\xc0\xaf", b"\xed\xa0\x80x", b"\xf4\x90\x80\x80",
           b"\xf0\x9f\x98\x80\xf0\x9f", b"ok \xfe\xff ok", b"\xe2\x96\x81\xe2\x96", b"\xc3(", b"\xf1\x80\x80A"]

def expected():
    out = {}
    some = texts()
    for name in ("bytes.json", "gpt2.json", "marks.json"):
        t = Tokenizer.from_file(os.path.join(here, name))
        rows = []
        for b in [x.encode() for x in some] + INVALID:
            ids = t.encode(b.decode("utf-8", "replace"), add_special_tokens=False).ids
            rows.append({"text": b.hex(), "ids": ids})
        rnd = random.Random(11)
        n = t.get_vocab_size()
        decoded = [[rnd.randrange(n) for _ in range(rnd.randrange(1, 40))] for _ in range(50)]
        decoded += [r["ids"][rnd.randrange(3):] for r in rows[:50]]
        if name == "marks.json":
            decoded += [[rnd.randrange(3, 270) for _ in range(rnd.randrange(1, 12))] for _ in range(30)]
        out[name] = {"encode": rows, "decode": [
            {"ids": d, "text": t.decode(d, skip_special_tokens=True).encode().hex()} for d in decoded]}
    for name in ("marks.model", "squeeze.model"):
        t = spm.SentencePieceProcessor(model_file=os.path.join(here, name))
        rows = [{"text": b.hex(), "ids": t.encode(b)} for b in [x.encode() for x in some if "\x00" not in x] + INVALID]
        rnd = random.Random(12)
        n = t.get_piece_size()
        ids = [i for i in range(n) if not t.is_unknown(i)]
        decoded = [[rnd.choice(ids) for _ in range(rnd.randrange(1, 40))] for _ in range(40)]
        decoded += [[rnd.randrange(3, 270) for _ in range(rnd.randrange(1, 12))] for _ in range(30)]
        decoded += [r["ids"] for r in rows[:30]]
        out[name] = {"encode": rows, "decode": [{"ids": d, "text": t.decode(d).encode().hex()} for d in decoded]}
    import zlib
    with open(os.path.join(here, "expected.json"), "w") as f:
        json.dump(out, f, separators=(",", ":"))

if __name__ == "__main__":
    make_bytes("bytes.json", True, True)
    make_bytes("gpt2.json", False, False)
    make_model("marks.model", False)
    make_model("squeeze.model", True)
    make_json_of_model("marks.json", "marks.model")
    expected()

# Small ones for fuzzing: 256 bytes and a few merges.
def make_small():
    for name, split in (("small.json", True),):
        t = Tokenizer(models.BPE(ignore_merges=True))
        t.pre_tokenizer = pre_tokenizers.Sequence([
            pre_tokenizers.Split(Regex(LLAMA3), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
        t.decoder = decoders.ByteLevel()
        t.train_from_iterator(LINES, trainers.BpeTrainer(
            vocab_size=290, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False))
        t.add_special_tokens(["<s>"])
        t.save(os.path.join(here, name), pretty=False)
    with open("/tmp/small.txt", "w") as f:
        f.write("hello world ab ab abc hello\n" * 20)
    out = io.BytesIO()
    spm.SentencePieceTrainer.train(
        input="/tmp/small.txt", model_writer=out, model_type="bpe", vocab_size=290, byte_fallback=True,
        normalization_rule_name="identity", hard_vocab_limit=False, user_defined_symbols=["<tool>"], minloglevel=2)
    open(os.path.join(here, "small.model"), "wb").write(out.getvalue())
    make_json_of_model("small-marks.json", "small.model")

if __name__ == "__main__":
    make_small()
