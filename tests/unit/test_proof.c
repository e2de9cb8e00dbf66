/* Proofs of who knows the key (runtime/comm/ground/proof.h): each holds for one side, one handshake and one key. */
#include "case.h"

#include "runtime/comm/ground/proof.h"

#include <string.h>

static hd_handshake shake(void)
{
    hd_handshake out;
    assert_int_equal(hd_handshake_begin(&out, 3, 1), 0);
    memset(out.nonce, 7, sizeof out.nonce);
    out.version = 4;
    return out;
}

HD_CASE(a_proof_is_of_all_of_it)
{
    hd_secret secret, other;
    unsigned char proof[HD_PROOF_BYTES];
    const hd_handshake right = shake();
    hd_secret_of(&secret, "key", 3);
    hd_secret_of(&other, "kez", 3);
    for (int side = HD_CALLEE; side <= HD_CALLER; side++) {
        hd_prove(proof, &secret, &right, side);
        assert_true(hd_proves(proof, &secret, &right, side));
        assert_false(hd_proves(proof, &secret, &right, !side));
        assert_false(hd_proves(proof, &other, &right, side));
        for (size_t i = 0; i < sizeof right; i++) {
            hd_handshake wrong = right;
            ((unsigned char *)&wrong)[i] ^= 1;
            assert_false(hd_proves(proof, &secret, &wrong, side));
        }
        for (size_t i = 0; i < 8 * sizeof proof; i++) {
            proof[i / 8] ^= (unsigned char)(1u << i % 8);
            assert_false(hd_proves(proof, &secret, &right, side));
            proof[i / 8] ^= (unsigned char)(1u << i % 8);
        }
    }
}

HD_CASE(no_two_begin_alike)
{
    const hd_handshake a = shake(), b = shake();
    assert_memory_not_equal(a.knock.nonce, b.knock.nonce, sizeof a.knock.nonce);
    assert_true(a.knock.from == 3 && a.knock.to == 1);
}
